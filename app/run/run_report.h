// Output of a training run: lines and a progress bar for people, JSON lines for scripts, TensorBoard and CSV
// if the ds_config enables them. Only the first rank writes.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/run/best.h"
#include "app/run/run_options.h"
#include "app/run/start_lines.h"
#include "comm/communicator.h"
#include "config_schema/read_config.h"
#include "launcher/board.h"
#include "monitor/event.h"
#include "runtime/engine.h"

namespace cleave::app {

struct StepCost {
  double seconds = 0;
  comm::CommBytes sent;                 // by this rank
  std::map<std::string, double> times;  // in ms by curve, if the configuration asks for them
  std::map<std::string, monitor::Communicated::Sum> collectives;  // if comms_logger is enabled
};

class RunReport {
 public:
  RunReport(bool first, const RunOptions& options, const config::ReadResult& config);
  ~RunReport();

  // Call before start() and before the engine allocates: the measured product needs memory.
  void measure_peak(Device device, DType type);
  // `quietly`: without lines for people. Only the first call has an effect.
  void start(const runtime::Engine& engine, const StartFacts& facts, bool quietly = false);
  void step(const runtime::Engine& engine, const runtime::StepResult& result, const StepCost& cost);
  // Steps and evaluations in the outputs; repeated ones are not reported again. An earlier process of the run
  // may have reported some.
  launcher::Reported reported() const;
  void skip(launcher::Reported earlier);
  // Waits until the files of the outputs have all events so far.
  void write_out();
  // Counts epochs and samples from a resumed position on. Call before start().
  void count_epochs(const EpochLength& epoch);
  // Passes an event to the outputs, as soon as start() opens them. Safe to call on any thread.
  void emit(monitor::Event event);
  // Reports the measured memory, if an output takes it.
  void memory(const runtime::Engine& engine);
  // `data`: name of the evaluation data; may be empty.
  void evaluation(int64_t step, const std::string& data, const runtime::Evaluation& result);
  void line(const std::string& text);
  // Closes the files and prints the summary.
  void end(const runtime::Engine& engine, const Best& best, bool stopped, bool has_tokenizer);

 private:
  struct Sinks;
  void named(const std::vector<config::NamedValue>& lines);
  void print(const std::string& text);

  std::unique_ptr<Sinks> sinks_;
};

}  // namespace cleave::app
