// The update of optimizer state that lives in host memory while weights and gradients are on a GPU. The CPU's
// kernels run on a worker thread, tile by tile: gradients come and weights go through pinned memory, in
// stream order, the next tile's gradients while one is updated.
#pragma once
#include "device/memory.h"
#include "optim/optimizer.h"

namespace cleave {

class HostUpdate {
 public:
  // The types of the working copy and of the gradients.
  HostUpdate(Memory& memory, DType weights, DType gradients);

  // Where masters and states are written.
  Stream& stream() { return worker_; }
  // As Optimizer::update on `compute`; param and state in host memory, grad and copy on the GPU.
  void update(const Optimizer& optimizer, const UpdateSlice& slice, const StepArgs& args, Stream& compute);
  // weights (on the GPU) = master, cast, in the order of `compute`.
  void publish(Tensor weights, Tensor master, Stream& compute);

 private:
  static constexpr int64_t kTile = int64_t{1} << 20;  // elements
  Buffer weights_[2], gradients_[2];
  Stream worker_;
};

}  // namespace cleave
