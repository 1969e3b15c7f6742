#include "zero/host_update.h"

#include <algorithm>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave {
namespace {

bool on_host(const Tensor& t) { return t.memory() != MemoryKind::device; }

}  // namespace

HostUpdate::HostUpdate(Memory& memory, DType weights, DType gradients, bool gradients_on_device)
    : worker_(memory.dry() ? Stream::Mode::dry : Stream::Mode::worker),
      down_(memory.dry() ? Device{} : memory.device(),
            memory.dry() ? Stream::Mode::dry : Stream::Mode::worker),
      up_(memory.dry() ? Device{} : memory.device(),
          memory.dry() ? Stream::Mode::dry : Stream::Mode::worker) {
  auto allocate = [&](Slots& slots, DType type, int64_t numel) {
    for (Slot& s : slots.slot)
      s.memory =
          memory.allocate(MemoryKind::pinned, Category::staging, type, {numel}, "tiles of the host's update");
  };
  allocate(weights_, weights, kTile);
  allocate(gradients_, gradients, gradients_on_device ? kTile : 0);
}

void HostUpdate::show_in(Trace& trace) {
  trace_ = &trace;
  trace.name(worker_, "host updates");
  trace.name(down_, "gradients to the host's update"), trace.name(up_, "weights from the host's update");
}

Tensor HostUpdate::arrive(Tensor gradient, const Event& ready) {
  worker_.wait(ready);
  if (!gradient.defined() || on_host(gradient)) return gradient;
  Slot& slot = gradients_.take();
  const Tensor here = slot.memory.tensor().slice({0, gradient.numel()});
  down_.wait(ready), down_.wait(slot.free);
  {
    const TraceSpan seen(trace_, down_, "gradient", "tile");
    copy(here, gradient, down_);
  }
  worker_.wait(down_.record());
  return here;
}

Event HostUpdate::leave(Tensor weights, Slot& slot) {
  up_.wait(worker_.record());
  {
    const TraceSpan seen(trace_, up_, "update", "weights of a tile");
    copy(weights, slot.memory.tensor().slice({0, weights.numel()}), up_);
  }
  return slot.free = up_.record();
}

Event HostUpdate::update(const Kernels& kernels, const UpdateSlice& slice, const Event& ready) {
  Event done = ready;
  for (Range r{0, 0}; r.begin < slice.param.numel(); r.begin = r.end) {
    r.end = std::min(slice.param.numel(), r.begin + kTile);
    UpdateSlice piece = slice.slice(r);
    const Tensor weights = piece.copy;
    const bool leaves = weights.defined() && !on_host(weights),
               arrives = piece.grad.defined() && !on_host(piece.grad);
    piece.grad = arrive(piece.grad, ready);
    Slot* const slot = leaves ? &weights_.take() : nullptr;
    if (slot) {
      worker_.wait(slot->free);
      piece.copy = slot->memory.tensor().slice({0, r.size()});
    }
    {
      const TraceSpan seen(trace_, worker_, "update", "tile");
      kernels(piece, worker_);
    }
    done = worker_.record();
    if (arrives) gradients_.slot[gradients_.next].free = done;
    if (slot) done = leave(weights, *slot);
  }
  return done;
}

Event HostUpdate::publish(Tensor weights, Tensor master, const Event& ready) {
  worker_.wait(ready), up_.wait(ready);
  if (on_host(weights)) {
    launch(Cast{.y = weights, .x = master}, worker_);
    return worker_.record();
  }
  Event done = ready;
  for (Range r{0, 0}; r.begin < weights.numel(); r.begin = r.end) {
    r.end = std::min(weights.numel(), r.begin + kTile);
    Slot& slot = weights_.take();
    worker_.wait(slot.free);
    launch(Cast{.y = slot.memory.tensor().slice({0, r.size()}), .x = master.slice(r)}, worker_);
    done = leave(weights.slice(r), slot);
  }
  return done;
}

}  // namespace cleave
