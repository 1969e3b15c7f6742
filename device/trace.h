// What a rank did and when: spans of work on its streams, written as trace events that Chrome's trace viewer
// and Perfetto show ("Trace Event Format", complete events).
#pragma once
#include <deque>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "device/stream.h"

namespace cleave {

struct TraceEvent {
  std::string name;
  const char* category = "";        // "pipeline", "collective" or "step"
  int micro = -1, chunk = -1;       // of a pipeline's instruction
  int track = 0;                    // of Trace::name, or 0
  double begin_us = 0, end_us = 0;  // of the steady clock, the same on all ranks of a host
  double cpu_us = 0;                // of the thread that ran the stream's work meanwhile
};

class Trace {
 public:
  // Events of the first `steps` steps go to the file; Error(usage) when it cannot be written.
  Trace(const std::string& path, int rank, int64_t steps);
  Trace() = default;  // keeps its events
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Where one of several ranks writes: <stem>.<rank>.json; one rank alone: the path as it is.
  static std::string file_of(const std::string& path, int rank, int ranks);

  // From now on events of this stream are shown as a track called so.
  void name(const Stream& stream, const std::string& track);
  // After a step whose work is done: writes its events and forgets them.
  void end_step();
  bool on() const { return on_; }
  // In the order in which the host began them.
  const std::deque<TraceEvent>& events() const { return events_; }

 private:
  friend class TraceSpan;
  TraceEvent* begin(const Stream& stream, TraceEvent event);

  std::ofstream file_;
  std::string path_;
  int rank_ = 0;
  int64_t steps_left_ = 0;
  bool on_ = true;
  std::vector<std::pair<const Stream*, std::string>> tracks_;
  std::deque<TraceEvent> events_;  // addresses stay: tasks write times into them
};

// The stream's work between construction and destruction is one event. Costs nothing without a trace. Host
// thread only.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Stream& stream, const char* category, std::string_view name, int micro = -1,
            int chunk = -1);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceEvent* event_ = nullptr;
  Stream& stream_;
};

}  // namespace cleave
