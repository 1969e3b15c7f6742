// Reports of an engine of the C interface about its steps: curves, and lines for the caller to print.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "config_schema/ds_config.h"
#include "device/trace.h"
#include "monitor/monitors.h"
#include "monitor/profile.h"
#include "runtime/engine_base.h"

namespace cleave::capi {

class Reports {
 public:
  // `ranks` must outlive this, and this must outlive the engine.
  Reports(const config::DsConfig& config, comm::Communicator& ranks);

  // Returns the communicator and the trace for the engine; the trace is null if no report needs it.
  comm::Communicator& world() { return traced_ ? *traced_ : ranks_; }
  Trace* trace() { return trace_.get(); }

  // Opens the files on the first rank, before the first step. Throws Error(usage) if this fails.
  void open_files();
  bool has_monitors() const { return monitors_ && monitors_->any(); }
  // Returns true if end_step() must be called on this rank.
  bool wants_steps() const;
  void scalar(const std::string& tag, double value, int64_t samples);

  // Begins to measure, before work of a step.
  void watch();
  void begin_step(int64_t steps, std::optional<monitor::ProfiledEngine> engine);
  // Reads the events of finished work.
  void read_events();
  void time(monitor::Timer timer, bool begins);
  // Reports a finished step. Collective if a profile is wanted. Returns the text to print.
  std::string end_step(const runtime::EngineBase& engine, const runtime::StepResult& result, int64_t samples);
  // Returns the rest of the text. Not collective.
  std::string end();

  monitor::Profile* profile() { return profile_ ? &*profile_ : nullptr; }

 private:
  void say(const std::string& text);

  const config::DsConfig config_;
  comm::Communicator& ranks_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<comm::Communicator> traced_;
  std::unique_ptr<monitor::Monitors> monitors_;                 // of the first rank
  std::optional<monitor::Profile> profile_;                     // if a report is wanted
  std::string text_;                                            // not returned yet
  std::optional<std::chrono::steady_clock::time_point> began_;  // the current step
};

}  // namespace cleave::capi
