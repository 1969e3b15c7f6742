// Timeline of a rank: spans of work on its streams, written as trace events for Chrome's trace viewer and
// Perfetto ("Trace Event Format", complete events).
#pragma once
#include <deque>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "device/stream.h"

namespace cleave {

struct TraceEvent {
  std::string name;
  // "pipeline", "collective", "step"; offload: "gather" (weights from their home), "gradient" (there or
  // back), "update" (of a unit), "disk", "inputs" (moves layer inputs); or a layer's "forward", "recompute"
  // or "backward"
  const char* category = "";
  int micro = -1, chunk = -1;  // of a pipeline instruction
  int layer = -1;              // index in the model; the head follows the last layer
  std::string_view op = {};    // of a collective: its name (a literal), the bytes of the
  int64_t bytes = 0;           // whole tensor, and the group size
  int ranks = 0;
  const Stream* stream = nullptr;   // runs the work; events of one stream nest or follow each other
  bool filed = false;               // is written to the trace file
  int track = 0;                    // of Trace::name, or 0
  double begin_us = 0, end_us = 0;  // steady clock, equal on all ranks of a host; end 0: running
  double cpu_us = 0;                // CPU time of the stream's thread during the event
};

class Trace {
 public:
  // Writes events of the first `steps` steps to the file. `clock_us` is added to times to align the ranks of
  // several hosts (comm/clock.h). Throws Error(usage) if the file cannot be created. If a write fails later,
  // prints one warning to stderr and stops tracing.
  Trace(const std::string& path, int rank, int64_t steps, double clock_us = 0);
  // Without a file: keeps events for events(), or is on only while a listener is set.
  enum class Keep { all, none };
  explicit Trace(Keep keep = Keep::all) : keeps_(keep == Keep::all) {}
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // File of a rank: <stem>.<rank>.json, or the given path for a single rank.
  static std::string file_of(const std::string& path, int rank, int ranks);
  static double now_us();  // clock of the events

  // Shows later events of this stream, or only those of one category, as a track with this name.
  void name(const Stream& stream, const std::string& track, const char* category = "");
  const std::string& track_of(const TraceEvent& event) const;
  // Passes all events of later steps to `listener`, from end_step(). An empty function removes the listener.
  void listen(std::function<void(const TraceEvent&)> listener) { listener_ = std::move(listener); }
  // Writes, reports and forgets the events of a step, up to the first one with unfinished work, such as a
  // write after the step. A later call or the destructor handles the rest.
  void end_step();
  bool on() const { return keeps_ || steps_left_ > 0 || listener_; }
  // In the order of their begin on the host.
  const std::deque<TraceEvent>& events() const { return events_; }

 private:
  friend class TraceSpan;
  TraceEvent* begin(TraceEvent event);
  void write(const TraceEvent& event);

  struct Track {
    const Stream* stream;
    std::string category, name;
    bool announced = false;  // in the file
  };
  std::ofstream file_;
  std::string path_;
  int rank_ = 0;
  int64_t steps_left_ = 0;
  double clock_us_ = 0;
  bool keeps_ = false;
  std::function<void(const TraceEvent&)> listener_;
  std::vector<Track> tracks_;
  std::deque<TraceEvent> events_;  // addresses must be stable: tasks write times into the events
};

// Records the work enqueued between construction and destruction as one event, and as a tool range of the
// thread (device/tool_ranges.h). Free if neither is active. Host thread only.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Stream& stream, const char* category, std::string_view name, int micro = -1,
            int chunk = -1);
  // Takes other fields of the event; `stream` and times are set here.
  TraceSpan(Trace* trace, Stream& stream, TraceEvent event);
  ~TraceSpan();
  // Returns true if a trace or a tool would record the event.
  static bool wanted(const Trace* trace);
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceEvent* event_ = nullptr;
  bool named_ = false;
  Stream& stream_;
};

}  // namespace cleave
