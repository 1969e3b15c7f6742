// The CUDA stream on which a caller of the C interface works, which may change between calls.
#pragma once
#include <map>
#include <memory>

#include "device/stream.h"

namespace cleave::capi {

class CallerStream {
 public:
  // `first`: the caller's stream until `use`.
  CallerStream(Device device, void* first) : device_(device), first_(first) { use(first); }

  void use(void* stream);
  // Declares that this stream of the engine is `first`, so that work on the two needs no events.
  void computes_on(const Stream& engine) { same_ = &engine; }

  // Later work of an engine's stream starts after the caller's work so far.
  void before(Stream& engine);
  // Later work of the caller starts after the work of an engine's stream so far.
  void after(Stream& engine);

 private:
  bool is(const Stream& engine) const { return now_ == first_ && &engine == same_; }

  const Device device_;
  void* const first_;
  void* now_ = nullptr;
  const Stream* same_ = nullptr;
  std::map<void*, std::unique_ptr<Stream>> streams_;
};

}  // namespace cleave::capi
