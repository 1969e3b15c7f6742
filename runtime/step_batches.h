// Micro-batches of one step. Their number of targets is known before the first one is computed.
#pragma once
#include <vector>

#include "device/batch.h"

namespace cleave::runtime {

class StepBatches {
 public:
  // Requests all `micros` micro-batches at once and keeps copies, unless the source gives the number of
  // targets or there is only one micro-batch. The source must outlive this object.
  StepBatches(const BatchSource& source, int micros);

  int64_t valid_targets() const { return valid_targets_; }  // over all micro-batches
  // Returns the next batch; call once per micro-batch, in order. Valid until the next call.
  Batch next(int micro) const { return kept_.empty() ? source_(micro) : kept_[size_t(micro)]; }

 private:
  void keep(const Batch& batch);
  Tensor copy_of(const Tensor& t);  // undefined if t is undefined

  const BatchSource& source_;
  int64_t valid_targets_ = 0;
  std::vector<Batch> kept_;
  std::vector<std::vector<char>> memory_;
};

}  // namespace cleave::runtime
