// What a training run shows and records: lines and a progress bar for people, JSON lines for scripts,
// TensorBoard and CSV where the ds_config asks for them. Does nothing on any rank but the first.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "app/run/run_options.h"
#include "config_schema/read_config.h"
#include "monitor/step_times.h"
#include "runtime/engine.h"

namespace cleave::app {

class Report {
 public:
  Report(bool first, const RunOptions& options, const config::ReadResult& config);
  ~Report();

  // Before start() and before the engine has its memory: the product that is measured takes some for itself.
  void measure_peak(Device device, DType type);
  void start(const runtime::Engine& engine, int ranks, const std::string& transport,
             const std::string& threads);
  void step(const runtime::Engine& engine, const runtime::StepResult& result, double seconds,
            const std::optional<monitor::PhaseTimes>& times);
  // Counts epochs and samples from a resumed position on, before start().
  void count_epochs(const EpochLength& epoch);
  // `data`: the name of what was evaluated; may be empty.
  void evaluation(int64_t step, const std::string& data, const runtime::Evaluation& result);
  void line(const std::string& text);
  void end(const runtime::Engine& engine);

 private:
  struct Sinks;
  std::unique_ptr<Sinks> sinks_;
};

}  // namespace cleave::app
