// Order of work: streams and events with the CUDA contract, and nothing else. Work on one stream runs in
// order; between streams only events order it. A CPU stream is a worker thread, so that a missing event is a
// data race that ThreadSanitizer sees on a machine without a GPU; an inline stream runs each task at once in
// the caller.
#pragma once
#include <functional>
#include <memory>

namespace cleave {

// A point in a stream's work. Waiting on a default-constructed event returns at once.
class Event {
 public:
  void wait() const;  // blocks the calling thread until the work before the point is done

 private:
  friend class Stream;
  struct State;
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  // discard drops every task: running real code against it, with a dry arena, only measures what the code
  // takes.
  enum class Mode { inline_, worker, discard };

  // on_start runs first on the worker thread, to bind it, name it or size its thread team; other modes ignore
  // it.
  explicit Stream(Mode mode = Mode::inline_, std::function<void()> on_start = {});
  ~Stream();  // finishes what was enqueued; errors not yet seen by synchronize() are dropped
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Tasks must be self-contained values. If a task throws, later tasks are skipped (events still fire) and
  // the error leaves by synchronize(); an inline stream throws from enqueue itself.
  void enqueue(std::function<void()> task);
  Event record();
  void wait(const Event& event);  // later work on this stream starts after the event
  void synchronize();             // blocks the host; rethrows the first error of this stream
  bool discards() const { return mode_ == Mode::discard; }

 private:
  struct Worker;
  Mode mode_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace cleave
