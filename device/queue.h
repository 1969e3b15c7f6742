// Implementation interface of asynchronous streams; for device/ and kernel bodies only.
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
  // The same on a thread other than the launching one, without CUDA calls.
  virtual void wait_beside() { wait(); }
  // Calls `action` once, on any thread, when the point is reached; immediately if it already was.
  virtual void then(std::function<void()> action) = 0;
};

// Members have the contract of the Stream functions.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual void enqueue(std::function<void()> task) = 0;
  // Copies from or to GPU memory; host memory must be page-locked.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  // Copies from pageable host memory, which may change after the return.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  // Copies to pageable host memory; blocks until done.
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

// Throw Error(usage) if this build or machine does not support CUDA streams.
std::unique_ptr<Queue> make_cuda_queue(Device device, Stream::Turn turn);
std::unique_ptr<Queue> adopt_cuda_queue(Stream::Foreign foreign);

}  // namespace cleave
