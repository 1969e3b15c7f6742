// Order of work: streams and events with the CUDA contract. Work on one stream runs in order; only events
// order work between streams. A CPU stream is a worker thread, so ThreadSanitizer sees a missing event as a
// data race without a GPU. An inline stream runs each task immediately in the caller.
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
  // discard drops every task: real code runs against it, with a dry arena, to measure memory. dry also drops
  // tasks, but counts the enqueued work: a whole training step without data.
  enum class Mode { inline_, worker, discard, dry };

  // on_start runs first on the worker thread, for binding, naming or setting its thread team; other modes
  // ignore it.
  explicit Stream(Mode mode = Mode::inline_, std::function<void()> on_start = {});
  // A stream of the GPU, or of mode `otherwise` on the CPU. Tasks run on a driver thread in stream order and
  // must not call CUDA. Events order CPU and CUDA streams in both directions without blocking the host,
  // except that an inline stream blocks its caller. Turn::first gives kernel blocks priority over waiting
  // blocks of other streams, for work that other ranks wait for.
  enum class Turn { usual, first };
  explicit Stream(Device device, Mode otherwise = Mode::inline_, Turn turn = Turn::usual);
  // A stream of the GPU that the caller created and that outlives this object. Work is enqueued between the
  // caller's work.
  struct Foreign {
    Device device;
    void* handle;  // cudaStream_t
  };
  explicit Stream(Foreign foreign);
  ~Stream();  // finishes the enqueued work; drops errors that synchronize() did not throw yet
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Tasks must be self-contained values. If a task throws, later tasks are skipped (events still fire) and
  // synchronize() throws the error; an inline stream throws from enqueue. Kernels on a CUDA stream always
  // run; synchronize() also throws faults that they find in their operands.
  void enqueue(std::function<void()> task);
  Event record();
  void wait(const Event& event);  // later work on this stream starts after the event
  void synchronize();             // blocks the host; rethrows the first error of this stream
  bool discards() const { return mode_ == Mode::discard; }
  bool dry() const { return mode_ == Mode::dry; }

  bool on_cuda() const { return cuda_; }
  // Sets the scratch of kernels and copies (device/workspace.h), which must outlive the stream. A CUDA stream
  // needs it before its first kernel; other streams ignore it.
  void lend(Tensor device, Tensor pinned);
  // Allows fp32 matrix products on a CUDA stream to round their operands to TF32.
  void allow_tf32();
  // Allows libraries on a CUDA stream to sum in an order that varies between runs.
  void allow_any_order();
  // Allows a CUDA stream to measure library algorithms and use the fastest for each new shape in this process
  // (kernels/choices.h).
  void measure_choices();
  Tensor pinned() const;                         // pinned part of the workspace; undefined on a CPU stream
  Queue* queue() const { return queue_.get(); }  // for kernel bodies

 private:
  Mode mode_;
  bool cuda_ = false;
  std::unique_ptr<Queue> queue_;  // null: inline, discard or dry
};

}  // namespace cleave
