// Kernels whose operands live in a home. A CPU rank's streams compute on every kind of memory, so nothing
// happens here; a GPU's do not compute on the host's memory, so that work runs on a worker thread, in the
// order of the stream it belongs to.
#pragma once
#include <memory>

#include "device/memory.h"
#include "device/stream.h"

namespace cleave::offload {

class HomeStream {
 public:
  explicit HomeStream(const Memory& memory) {
    if (memory.device().is_cuda())
      worker_ = std::make_unique<Stream>(memory.dry() ? Stream::Mode::dry : Stream::Mode::worker);
  }

  // Whether kernels and collectives on the rank's own streams may use memory of this kind.
  bool reaches(MemoryKind kind) const { return !worker_ || kind == MemoryKind::device; }

  // Calls body(stream) with a stream that computes on memory of this kind; what it enqueues there runs after
  // the work of `order` so far and before what `order` is given later.
  template <class Body>
  void run(MemoryKind kind, Stream& order, Body body) {
    if (reaches(kind)) return body(order);
    worker_->wait(order.record());
    body(*worker_);
    order.wait(worker_->record());
  }

 private:
  std::unique_ptr<Stream> worker_;
};

}  // namespace cleave::offload
