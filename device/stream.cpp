#include "device/stream.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace cleave {

struct Event::State {
  std::mutex mutex;
  std::condition_variable ready;
  bool done = false;

  void fire() {
    // Notified under the lock: the waiter may free this state as soon as it sees done.
    std::lock_guard lock(mutex);
    done = true;
    ready.notify_all();
  }
};

void Event::wait() const {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  state_->ready.wait(lock, [this] { return state_->done; });
}

struct Stream::Worker {
  struct Task {
    std::function<void()> body;
    bool always =
        false;  // bookkeeping that must run even after a failure, or another stream would wait forever
  };
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Task> tasks;
  std::exception_ptr failure;
  bool stopping = false;
  std::thread thread;

  void push(Task task) {
    std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    wake.notify_one();
  }

  void run() {
    for (;;) {
      Task task;
      bool skip = false;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [this] { return stopping || !tasks.empty(); });
        if (tasks.empty()) return;
        task = std::move(tasks.front());
        tasks.pop_front();
        skip = failure && !task.always;
      }
      if (skip) continue;
      try {
        task.body();
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  }
};

Stream::Stream(Mode mode, std::function<void()> on_start) : mode_(mode) {
  if (mode != Mode::worker) return;
  worker_ = std::make_unique<Worker>();
  if (on_start) worker_->push({std::move(on_start), false});
  worker_->thread = std::thread([w = worker_.get()] { w->run(); });
}

Stream::~Stream() {
  if (!worker_) return;
  {
    std::lock_guard lock(worker_->mutex);
    worker_->stopping = true;
    worker_->wake.notify_one();
  }
  worker_->thread.join();
}

void Stream::enqueue(std::function<void()> task) {
  if (worker_)
    worker_->push({std::move(task), false});
  else if (mode_ == Mode::inline_)
    task();
}

Event Stream::record() {
  Event event;
  if (!worker_) return event;  // inline work is done by now
  event.state_ = std::make_shared<Event::State>();
  worker_->push({[s = event.state_] { s->fire(); }, true});
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.state_) return;
  if (worker_)
    worker_->push({[event] { event.wait(); }, true});
  else
    event.wait();
}

void Stream::synchronize() {
  if (!worker_) return;
  record().wait();
  std::lock_guard lock(worker_->mutex);
  if (auto failure = std::exchange(worker_->failure, nullptr)) std::rethrow_exception(failure);
}

}  // namespace cleave
