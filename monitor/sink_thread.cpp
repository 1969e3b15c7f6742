#include "monitor/sink_thread.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/warnings.h"

namespace cleave::monitor {
namespace {

// A thread looks for events after this time, and sleeps if there are none. To wake it takes a step longer
// than to add an event.
constexpr std::chrono::milliseconds kPause{50};

bool may_be_dropped(const Event& e) {
  return std::holds_alternative<Stepped>(e) || std::holds_alternative<Measured>(e) ||
         std::holds_alternative<Communicated>(e) || std::holds_alternative<Warned>(e) ||
         std::holds_alternative<Said>(e);
}

}  // namespace

struct SinkThread::Shared {
  std::unique_ptr<Sink> sink;
  std::string name;
  EventKinds takes = kAllEvents;
  size_t capacity = 0;
  std::mutex mutex;
  std::condition_variable arrived, taken;
  std::deque<std::shared_ptr<const Event>> waiting;
  int64_t dropped = 0;
  std::chrono::milliseconds interval{0}, longest_end{0};
  std::chrono::steady_clock::time_point finished_at;
  bool working = false, ends = false, asleep = false, ended = false, abandoned = false;

  // Calls the sink without the lock.
  template <class Call>
  void use(std::unique_lock<std::mutex>& lock, const Call& call) {
    if (!sink) return;
    lock.unlock();
    try {
      call(*sink);
    } catch (const std::exception& e) {
      warn("{}: {}; this run adds nothing more to it", name, e.what());
      sink.reset();
    }
    lock.lock();
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      const auto ready = [&] { return ends || !waiting.empty(); };
      if (!arrived.wait_for(lock, kPause, ready)) {
        asleep = true;
        const bool woken = interval.count() > 0 ? arrived.wait_for(lock, interval, ready)
                                                : (arrived.wait(lock, ready), true);
        asleep = false;
        if (!woken) {
          use(lock, [](Sink& s) { s.wake(); });
          continue;
        }
      }
      if (waiting.empty()) break;
      const std::shared_ptr<const Event> event = std::move(waiting.front());
      waiting.pop_front();
      working = true;
      use(lock, [&](Sink& s) { std::visit([&](const auto& e) { s.take(e); }, *event); });
      working = false;
      if (waiting.empty()) taken.notify_all();
    }
    if (!abandoned) use(lock, [](Sink& s) { s.end(); });
    ended = true;
    taken.notify_all();
  }
};

SinkThread::SinkThread(std::unique_ptr<Sink> sink, size_t capacity) : shared_(std::make_shared<Shared>()) {
  shared_->name = sink->name(), shared_->takes = sink->takes(), shared_->sink = std::move(sink),
  shared_->capacity = capacity;
  shared_->interval = shared_->sink->interval(), shared_->longest_end = shared_->sink->longest_end();
}

void SinkThread::finish() {
  Shared& s = *shared_;
  const std::lock_guard lock(s.mutex);
  if (s.ends) return;
  s.ends = true, s.finished_at = std::chrono::steady_clock::now();
  s.arrived.notify_all();
}

void SinkThread::close(std::chrono::steady_clock::time_point until) {
  finish();
  if (!thread_.joinable()) return;
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  s.taken.wait_until(lock, until, [&] { return s.waiting.empty() && !s.working; });
  if (s.waiting.empty() && !s.working)
    s.taken.wait_until(lock, std::max(until, s.finished_at + s.longest_end), [&] { return s.ended; });
  const bool ended = s.ended;
  const int64_t lost = s.dropped + int64_t(s.waiting.size()) + s.working;
  s.waiting.clear(), s.abandoned = true;
  lock.unlock();
  if (ended)
    thread_.join();
  else
    thread_.detach();
  if (lost > 0)
    warn("{}: {} events were not written, because the file or server is slower than the training", s.name,
         lost);
}

void SinkThread::emit(std::shared_ptr<const Event> event) {
  Shared& s = *shared_;
  if (!(s.takes >> event->index() & 1)) return;
  std::unique_lock lock(s.mutex);
  if (s.ends) return;
  if (s.waiting.size() >= s.capacity && may_be_dropped(*event)) {
    ++s.dropped;
    return;
  }
  s.waiting.push_back(std::move(event));
  if (!thread_.joinable()) thread_ = std::thread([shared = shared_] { shared->run(); });
  const bool wakes = std::exchange(s.asleep, false);
  lock.unlock();
  if (wakes) s.arrived.notify_one();
}

bool SinkThread::flush(std::chrono::steady_clock::time_point until) {
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  s.arrived.notify_one();
  return s.taken.wait_until(lock, until, [&] { return s.waiting.empty() && !s.working; });
}

bool SinkThread::waits() const { return shared_->interval.count() > 0; }

int64_t SinkThread::dropped() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->dropped;
}

}  // namespace cleave::monitor
