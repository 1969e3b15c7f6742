// The update of optimizer state that lives in host memory while weights and gradients are on a GPU. The CPU's
// kernels run on a worker thread, tile by tile; gradients come and weights go through pinned memory on
// streams of their own. Nothing waits between units: while one tile is updated the next one's gradients
// arrive and the last one's weights leave, whichever units they belong to.
#pragma once
#include <functional>

#include "device/memory.h"
#include "device/trace.h"
#include "optim/optimizer.h"

namespace cleave {

class HostUpdate {
 public:
  // The types of the working copy and of the gradients, and whether these are on the device: what lies in
  // host memory is read where it is.
  HostUpdate(Memory& memory, DType weights, DType gradients, bool gradients_on_device);

  void show_in(Trace& trace);  // updates, and what arrives and leaves
  // Where masters and states are written.
  Stream& stream() { return worker_; }
  // Runs kernels of an update on pieces of the slice after `ready`; param and state in host memory, grad and
  // copy anywhere or undefined. The event is there when they have read grad and written copy, wherever they
  // are.
  using Kernels = std::function<void(const UpdateSlice& piece, Stream& stream)>;
  Event update(const Kernels& kernels, const UpdateSlice& slice, const Event& ready);
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
  Trace* trace_ = nullptr;
  Stream worker_, down_, up_;  // go first: they finish what was enqueued
};

}  // namespace cleave
