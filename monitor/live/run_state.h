// What a training has reported so far, from the lines of its metrics (monitor/metrics.h): facts of the start,
// curves of bounded length, the last evaluation of each data set, and warnings.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cleave::monitor {

class RunState {
 public:
  // name: of the run, for pages.
  explicit RunState(std::string name);
  ~RunState();
  RunState(const RunState&) = delete;
  RunState& operator=(const RunState&) = delete;

  // Adds one line. Returns false, without effect, for text that is not a line of metrics. Any thread may call
  // this and the functions below.
  bool add(std::string_view line);
  // Adds all complete lines of a file after those of the last call, so a growing file may be read again.
  // Throws Error(usage) if the file cannot be read or has other contents.
  void read(const std::string& path);

  // Returns a JSON object. Members: "name"; "start" and "end", the fields of these events; "last", the last
  // step; "columns", and "curve", a row of these columns per point; "stride", the steps of which each point
  // has the mean (a run with more points than kMostPoints doubles it); "evaluations", points per data set;
  // "choices"; "checkpoints"; "warnings", the last kMostWarnings. Numbers that are not finite are null. Only
  // points after step `after`, with the same stride, are in "curve".
  std::string as_json(int64_t after = 0) const;
  // Returns the state in the text format of Prometheus, version 0.0.4.
  std::string prometheus() const;

  static constexpr size_t kMostPoints = 2048, kMostWarnings = 20;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace cleave::monitor
