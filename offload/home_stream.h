// Runs kernels on operands in a home. Streams of a CPU rank compute on all memory kinds, so this class does
// nothing there. GPU streams do not compute on host memory, so a worker thread does this work, in the order
// of the stream that it belongs to.
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

  // Returns true if kernels and collectives on the rank's own streams may use memory of this kind.
  bool reaches(MemoryKind kind) const { return !worker_ || kind == MemoryKind::device; }

  // Calls body(stream) with a stream that computes on memory of this kind. The work enqueued there runs after
  // the earlier work of `order` and before its later work.
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
