// Order of work: streams and events with the CUDA contract, and nothing else. Work on one stream runs in
// order; between streams only events order it. A CPU stream is a worker thread, so that a missing event is a
// data race that ThreadSanitizer sees on a machine without a GPU; an inline stream runs each task at once in
// the caller.
#pragma once
#include <functional>
#include <memory>

#include "device/device.h"
#include "device/tensor.h"

namespace cleave {

class Queue;

// A point in a stream's work. Waiting on a default-constructed event returns at once.
class Event {
 public:
  struct State;
  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  void wait() const;  // blocks the calling thread until the work before the point is done
  State* state() const { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  // discard drops every task: running real code against it, with a dry arena, only measures what the code
  // takes. dry drops them as well, but what is enqueued counts: a whole training step without data.
  enum class Mode { inline_, worker, discard, dry };

  // on_start runs first on the worker thread, to bind it, name it or size its thread team; other modes ignore
  // it.
  explicit Stream(Mode mode = Mode::inline_, std::function<void()> on_start = {});
  // A stream of that GPU, or `otherwise` where the device is the CPU. Its tasks run on a thread of the driver
  // in stream order and must not call CUDA. Events order CPU and CUDA streams in both directions without
  // blocking the host, except that an inline stream blocks its caller.
  // Blocks of kernels of a stream that is `first` start before waiting ones of streams that are not: for what
  // other ranks wait for.
  enum class Turn { usual, first };
  explicit Stream(Device device, Mode otherwise = Mode::inline_, Turn turn = Turn::usual);
  // A stream of that GPU which somebody else made and ends later than this: work is enqueued between theirs.
  struct Foreign {
    Device device;
    void* handle;  // cudaStream_t
  };
  explicit Stream(Foreign foreign);
  ~Stream();  // finishes what was enqueued; errors not yet seen by synchronize() are dropped
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Tasks must be self-contained values. If a task throws, later tasks are skipped (events still fire) and
  // the error leaves by synchronize(); an inline stream throws from enqueue itself. Kernels on a CUDA stream
  // run all the same; one that finds bad data in its operands leaves its error by synchronize(), too.
  void enqueue(std::function<void()> task);
  Event record();
  void wait(const Event& event);  // later work on this stream starts after the event
  void synchronize();             // blocks the host; rethrows the first error of this stream
  bool discards() const { return mode_ == Mode::discard; }
  bool dry() const { return mode_ == Mode::dry; }

  bool on_cuda() const { return cuda_; }
  // Scratch for kernels and for staging (device/workspace.h), which must outlive the stream; a CUDA stream
  // needs it before its first kernel, others ignore it.
  void lend(Tensor device, Tensor pinned);
  // Lets matrix products of fp32 on a CUDA stream round their operands to TF32 from now on.
  void allow_tf32();
  // Lets a library on a CUDA stream add in an order that differs from time to time from now on.
  void allow_any_order();
  // Lets a CUDA stream measure what its libraries offer, and take the fastest, where it meets a shape for the
  // first time in this process from now on (kernels/choices.h).
  void measure_choices();
  Tensor pinned() const;                         // what was lent; undefined on a CPU stream
  Queue* queue() const { return queue_.get(); }  // for the bodies of kernels

 private:
  Mode mode_;
  bool cuda_ = false;
  std::unique_ptr<Queue> queue_;  // none: inline, discard or dry
};

}  // namespace cleave
