#include "monitor/event_stream.h"

#include <utility>

namespace cleave::monitor {

EventStream::EventStream(std::vector<std::unique_ptr<Sink>> sinks, EventStreamOptions options)
    : options_(options) {
  for (std::unique_ptr<Sink>& sink : sinks) threads_.emplace_back(std::move(sink), options.capacity);
}

void EventStream::emit(Event event) {
  if (threads_.empty()) return;
  const auto shared = std::make_shared<const Event>(std::move(event));
  for (SinkThread& thread : threads_) thread.emit(shared);
}

bool EventStream::flush() {
  const auto until = std::chrono::steady_clock::now() + options_.end;
  bool all = true;
  for (SinkThread& thread : threads_) all = thread.flush(until) && all;
  return all;
}

void EventStream::close() {
  flush();
  threads_.clear();
}

}  // namespace cleave::monitor
