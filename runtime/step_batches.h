// The micro-batches of one step, of which it must be known how many targets they have before the first is
// computed.
#pragma once
#include <vector>

#include "device/batch.h"

namespace cleave::runtime {

class StepBatches {
 public:
  // Asks for all `micros` micro-batches at once and keeps copies, unless the source says how many targets
  // they have or there is only one. The source must outlive this.
  StepBatches(const BatchSource& source, int micros);

  int64_t valid_targets() const { return valid_targets_; }  // of all of them
  // Once for each, in order; valid until the next call.
  Batch next(int micro) const { return kept_.empty() ? source_(micro) : kept_[size_t(micro)]; }

 private:
  void keep(const Batch& batch);
  Tensor copy_of(const Tensor& t);  // undefined where t is

  const BatchSource& source_;
  int64_t valid_targets_ = 0;
  std::vector<Batch> kept_;
  std::vector<std::vector<char>> memory_;
};

}  // namespace cleave::runtime
