#include "monitor/sink_thread.h"

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace cleave::monitor {
namespace {

// A thread looks for events after this time, and sleeps if there are none. To wake it takes a step longer
// than to add an event.
constexpr std::chrono::milliseconds kPause{50};

bool may_be_dropped(const Event& e) {
  return std::holds_alternative<Stepped>(e) || std::holds_alternative<Measured>(e) ||
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
  bool working = false, ends = false, asleep = false;

  void pass(const Event& event) {
    if (!sink) return;
    try {
      std::visit([&](const auto& e) { sink->take(e); }, event);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "warning: %s: %s; this run adds nothing more to it\n", name.c_str(), e.what());
      sink.reset();
    }
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      const auto ready = [&] { return ends || !waiting.empty(); };
      if (!arrived.wait_for(lock, kPause, ready)) {
        asleep = true;
        arrived.wait(lock, ready);
        asleep = false;
      }
      if (waiting.empty()) return;
      const std::shared_ptr<const Event> event = std::move(waiting.front());
      waiting.pop_front();
      working = true;
      lock.unlock();
      pass(*event);
      lock.lock();
      working = false;
      if (waiting.empty()) taken.notify_all();
    }
  }
};

SinkThread::SinkThread(std::unique_ptr<Sink> sink, size_t capacity) : shared_(std::make_shared<Shared>()) {
  shared_->name = sink->name(), shared_->takes = sink->takes(), shared_->sink = std::move(sink),
  shared_->capacity = capacity;
}

void SinkThread::close() {
  if (!thread_.joinable()) return;
  Shared& s = *shared_;
  std::unique_lock lock(s.mutex);
  const bool works = s.working || !s.waiting.empty();
  const int64_t lost = s.dropped + int64_t(s.waiting.size()) + s.working;
  s.waiting.clear(), s.ends = true;
  s.arrived.notify_all();
  lock.unlock();
  if (works)
    thread_.detach();
  else
    thread_.join();
  if (lost > 0)
    std::fprintf(stderr,
                 "warning: %s: %lld events were not written, because the file or server is slower than the "
                 "training\n",
                 s.name.c_str(), static_cast<long long>(lost));
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

int64_t SinkThread::dropped() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->dropped;
}

}  // namespace cleave::monitor
