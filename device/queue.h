// What a stream that does not run its work at once is made of; device/ and the bodies of kernels only.
#pragma once
#include <functional>
#include <memory>
#include <mutex>

#include "device/device.h"
#include "device/stream.h"

namespace cleave {

struct Event::State {
  virtual ~State() = default;
  virtual void wait() = 0;  // blocks the calling thread
  // The same on a thread beside the one that launches work, without a call of CUDA.
  virtual void wait_beside() { wait(); }
  // Calls `action` once, from any thread, when the point is reached; at once if it was.
  virtual void then(std::function<void()> action) = 0;
};

// The contract of each member is that of Stream's.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual void enqueue(std::function<void()> task) = 0;
  // Copies from or to memory of a GPU; what is of the host is page-locked.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // From pageable memory of the host, which may change when this has returned.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  // To pageable memory of the host. Blocks until the bytes are there.
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  virtual Event record() = 0;
  virtual void wait(const Event& event) = 0;
  virtual void synchronize() = 0;
  virtual void lend(const Tensor& device, const Tensor& pinned) = 0;
  virtual Tensor pinned() const = 0;

  bool tf32 = false;       // Stream::allow_tf32
  bool any_order = false;  // Stream::allow_any_order
  bool measures = false;   // Stream::measure_choices
};

// Throws Error(usage) where this build or this machine cannot have one.
std::unique_ptr<Queue> make_cuda_queue(Device device, Stream::Turn turn);
std::unique_ptr<Queue> adopt_cuda_queue(Stream::Foreign foreign);

}  // namespace cleave
