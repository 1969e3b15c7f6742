// The update of optimizer state that lives in host memory while weights and gradients are on a GPU. The CPU's
// kernels run on a worker thread, tile by tile; gradients come and weights go through pinned memory on
// streams of their own. Nothing waits between units: while one tile is updated the next one's gradients
// arrive and the last one's weights leave, whichever units they belong to.
#pragma once
#include "device/memory.h"
#include "optim/optimizer.h"

namespace cleave {

class HostUpdate {
 public:
  // The types of the working copy and of the gradients, and whether these are on the device: what lies in
  // host memory is read where it is.
  HostUpdate(Memory& memory, DType weights, DType gradients, bool gradients_on_device);

  // Where masters and states are written.
  Stream& stream() { return worker_; }
  // As Optimizer::update after `ready`; param and state in host memory. The event is there when the update
  // has read its gradient and written its copy, wherever they are.
  Event update(const Optimizer& optimizer, const UpdateSlice& slice, const StepArgs& args,
               const Event& ready);
  // weights = master, cast, after `ready`.
  Event publish(Tensor weights, Tensor master, const Event& ready);

 private:
  static constexpr int64_t kTile = int64_t{1} << 20;  // elements
  struct Slot {
    Buffer memory;
    Event free;
  };
  // Two of each, used in turn.
  struct Slots {
    Slot slot[2];
    int next = 0;
    Slot& take() { return slot[next ^= 1]; }
  };
  Tensor arrive(Tensor gradient, const Event& ready);
  Event leave(Tensor weights, Slot& slot);

  Slots weights_, gradients_;
  Stream worker_, down_, up_;  // go first: they finish what was enqueued
};

}  // namespace cleave
