#include "monitor/event_stream.h"

#include <utility>

namespace cleave::monitor {

EventStream::EventStream(std::vector<std::unique_ptr<Sink>> sinks, EventStreamOptions options)
    : options_(options) {
  for (const std::unique_ptr<Sink>& sink : sinks) takes_ |= sink->takes();
  for (std::unique_ptr<Sink>& sink : sinks) threads_.emplace_back(std::move(sink), options.capacity);
}

void EventStream::emit(Event event) {
  const bool starts = std::holds_alternative<Started>(event);
  const auto shared = std::make_shared<const Event>(std::move(event));
  {
    const std::lock_guard lock(mutex_);
    for (SinkThread& thread : threads_) thread.emit(shared);
  }
  if (starts && !warnings_ && wants(kinds_of<Warned>()))
    warnings_.emplace([this](const std::string& text) { emit(Warned{text}); });
}

bool EventStream::flush() {
  const auto until = std::chrono::steady_clock::now() + options_.end;
  bool all = true;
  for (SinkThread& thread : threads_) all = thread.flush(until) && all;
  return all;
}

bool EventStream::write_out(std::chrono::milliseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  bool all = true;
  for (SinkThread& thread : threads_) all = (thread.waits() || thread.flush(until)) && all;
  return all;
}

void EventStream::close() {
  warnings_.reset();
  const std::lock_guard lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + options_.end;
  for (SinkThread& thread : threads_) thread.finish();
  for (SinkThread& thread : threads_) thread.close(until);
  threads_.clear();
}

}  // namespace cleave::monitor
