#include "device/stream.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/failed_work.h"
#include "device/work_log.h"

namespace cleave {
namespace {

// A point in a worker thread's work.
class WorkerPoint final : public Event::State {
 public:
  void wait() override {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return done_; });
  }
  void then(std::function<void()> action) override {
    {
      std::lock_guard lock(mutex_);
      if (!done_) return actions_.push_back(std::move(action));
    }
    action();
  }
  void fire(std::exception_ptr failure) {
    std::vector<std::function<void()>> actions;
    {
      // Notified under the lock: the waiter may free this state as soon as it sees done.
      std::lock_guard lock(mutex_);
      done_ = true, failure_ = std::move(failure);
      actions.swap(actions_);
      ready_.notify_all();
    }
    for (const auto& action : actions) action();
  }
  std::exception_ptr failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::exception_ptr failure_;
  std::vector<std::function<void()>> actions_;
  bool done_ = false;
};

// A point in the work of a dry stream, which is done at once.
class LoggedPoint final : public Event::State {
 public:
  explicit LoggedPoint(int64_t at) : event(at) {}
  void wait() override {}
  void then(std::function<void()> action) override { action(); }

  const int64_t event;
};

class Worker final : public Queue {
 public:
  explicit Worker(std::function<void()> on_start) {
    if (on_start) push({std::move(on_start), false});
    thread_ = std::thread([this] { run(); });
  }
  ~Worker() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_one();
    }
    thread_.join();
  }

  void enqueue(std::function<void()> task) override { push({std::move(task), false}); }
  void copy(void*, const void*, int64_t) override {
    fail(Exit::internal, "a CPU stream was given memory of a GPU");
  }
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  Event record() override {
    auto point = std::make_shared<WorkerPoint>();
    push({[this, point] { point->fire(failure()); }, true});
    return Event(point);
  }
  void wait(const Event& event) override {
    push({[event] {
            if (event.state()) event.state()->wait_beside();
          },
          true});
  }
  void synchronize() override {
    // This point holds no failure: the worker could release it after the caller has caught the exception, and
    // would then free the exception on a thread that is not synchronized with the caller.
    auto point = std::make_shared<WorkerPoint>();
    push({[point] { point->fire(nullptr); }, true});
    point->wait();
    std::lock_guard lock(mutex_);
    if (auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
  }
  void lend(const Tensor&, const Tensor&) override {}
  Tensor pinned() const override { return {}; }

 private:
  struct Task {
    std::function<void()> body;
    bool always =
        false;  // bookkeeping that also runs after a failure; otherwise another stream would wait forever
  };

  std::exception_ptr failure() {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  void push(Task task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    wake_.notify_one();
  }

  void run() {
    for (;;) {
      Task task;
      bool skip = false;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        skip = failure_ && !task.always;
      }
      if (skip) continue;
      try {
        task.body();
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::exception_ptr failure_before(const Event::State& point) {
  const auto* of_worker = dynamic_cast<const WorkerPoint*>(&point);
  return of_worker ? of_worker->failure() : nullptr;
}

void Event::wait() const {
  if (state_) state_->wait();
}

Stream::Stream(Mode mode, std::function<void()> on_start) : mode_(mode) {
  if (mode == Mode::worker) queue_ = std::make_unique<Worker>(std::move(on_start));
}

Stream::Stream(Device device, Mode otherwise, Turn turn)
    : Stream(device.is_cuda() ? Mode::inline_ : otherwise) {
  cuda_ = device.is_cuda();
  if (cuda_) queue_ = make_cuda_queue(device, turn);
}

Stream::Stream(Foreign foreign) : mode_(Mode::inline_), cuda_(true), queue_(adopt_cuda_queue(foreign)) {}

Stream::~Stream() = default;

void Stream::enqueue(std::function<void()> task) {
  if (queue_)
    queue_->enqueue(std::move(task));
  else if (mode_ == Mode::inline_)
    task();
}

Event Stream::record() {
  if (queue_) return queue_->record();
  WorkLog* const log = dry() ? WorkLog::current() : nullptr;
  return log ? Event(std::make_shared<LoggedPoint>(log->record(*this))) : Event();  // its work is done
}

void Stream::wait(const Event& event) {
  if (!event.state()) return;
  if (WorkLog* const log = dry() ? WorkLog::current() : nullptr)
    if (const auto* point = dynamic_cast<const LoggedPoint*>(event.state()))
      return log->wait(*this, point->event);
  if (queue_)
    queue_->wait(event);
  else
    event.wait();
}

void Stream::synchronize() {
  if (queue_) queue_->synchronize();
}

void Stream::lend(Tensor device, Tensor pinned) {
  if (queue_) queue_->lend(device, pinned);
}

void Stream::allow_tf32() {
  if (queue_) queue_->tf32 = true;
}

void Stream::allow_any_order() {
  if (queue_) queue_->any_order = true;
}

void Stream::measure_choices() {
  if (queue_) queue_->measures = true;
}

Tensor Stream::pinned() const { return queue_ ? queue_->pinned() : Tensor(); }

}  // namespace cleave
