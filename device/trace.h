// What a rank did and when: spans of work on its streams, written as trace events that Chrome's trace viewer
// and Perfetto show ("Trace Event Format", complete events).
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
  // "pipeline", "collective", "step", what offload does: "gather" (of weights from a home), "gradient" (on
  // its way home), "update" (of a unit), "disk", "inputs" (of layers, on their way), or one layer's
  // "forward", "recompute" or "backward"
  const char* category = "";
  int micro = -1, chunk = -1;  // of a pipeline's instruction
  int layer = -1;              // index in the model; the head is behind the last
  std::string_view op = {};    // of a collective: its name (a literal), the bytes of the whole tensor that
  int64_t bytes = 0;           // it moves, and the size of its group
  int ranks = 0;
  const Stream* stream = nullptr;   // that does the work; events of one stream nest or follow each other
  bool filed = false;               // goes to the trace's file
  int track = 0;                    // of Trace::name, or 0
  double begin_us = 0, end_us = 0;  // of the steady clock, the same on all ranks of a host; end 0: not yet
  double cpu_us = 0;                // of the thread that ran the stream's work meanwhile
};

class Trace {
 public:
  // Events of the first `steps` steps go to the file, their times moved by `clock_us`, which brings ranks of
  // several hosts to one clock (comm/clock.h). Error(usage) when the file cannot be made; when it can no
  // longer be written, one warning on stderr says so and nothing more is traced.
  Trace(const std::string& path, int rank, int64_t steps, double clock_us = 0);
  // A trace without a file keeps its events for events(), or is on only while somebody listens.
  enum class Keep { all, none };
  explicit Trace(Keep keep = Keep::all) : keeps_(keep == Keep::all) {}
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Where one of several ranks writes: <stem>.<rank>.json; one rank alone: the path as it is.
  static std::string file_of(const std::string& path, int rank, int ranks);
  static double now_us();  // of the clock that events have

  // Shows events of this stream, or only those of one category, as a track called so from now on.
  void name(const Stream& stream, const std::string& track, const char* category = "");
  const std::string& track_of(const TraceEvent& event) const;
  // Every event of the steps from here on also goes to `listener`, from end_step(); empty: nobody listens.
  void listen(std::function<void(const TraceEvent&)> listener) { listener_ = std::move(listener); }
  // Writes and tells the events of a step and forgets them, up to the first whose work is still under way,
  // such as a write behind the step: those after it are written by a later call, or at the end.
  void end_step();
  bool on() const { return keeps_ || steps_left_ > 0 || listener_; }
  // In the order in which the host began them.
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
  std::deque<TraceEvent> events_;  // addresses stay: tasks write times into them
};

// The work that the stream is given between construction and destruction is one event, and a range of the
// thread's for a tool that listens (device/tool_ranges.h). Costs nothing without either. Host thread only.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Stream& stream, const char* category, std::string_view name, int micro = -1,
            int chunk = -1);
  // Takes more of the event's fields; `stream` and times are filled in.
  TraceSpan(Trace* trace, Stream& stream, TraceEvent event);
  ~TraceSpan();
  // Whether anybody would see it.
  static bool wanted(const Trace* trace);
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceEvent* event_ = nullptr;
  bool named_ = false;
  Stream& stream_;
};

}  // namespace cleave
