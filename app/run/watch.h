// Observers of a run: lines and a progress bar for people, files for scripts, and a trace of every
// rank.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "app/run/run_options.h"
#include "app/run/run_report.h"
#include "comm/communicator.h"
#include "device/trace.h"
#include "launcher/job.h"

namespace cleave::app {

class Watch {
 public:
  // All must outlive this.
  Watch(const RunOptions& wanted, const config::ReadResult& config, launcher::Job& job)
      : wanted_(wanted), config_(config), job_(job) {}

  // Opens the report; its files must be writable.
  void open_report() { report_.emplace(job_.first(), wanted_, config_); }
  bool has_report() const { return report_.has_value(); }
  // Opens the trace on the connected job, if the run or its configuration needs one. Collective; again after
  // leave().
  void open_trace();
  // Call before the job's communicator ends.
  void leave() { traced_.reset(); }

  // With cleave.copies_in_memory: waits until the outputs have all reports, and notes these for a process
  // that replaces the first rank.
  void settle();

  // Prints a line for the user on the first rank, above the progress bar.
  void say(const std::string& text);

  RunReport& report() { return *report_; }
  Trace* trace() { return trace_.get(); }  // null without a trace
  // Returns the communicator of all ranks; the trace records its calls.
  comm::Communicator& world() { return traced_ ? *traced_ : job_.world(); }

 private:
  const RunOptions& wanted_;
  const config::ReadResult& config_;
  launcher::Job& job_;
  std::optional<RunReport> report_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<comm::Communicator> traced_;
};

}  // namespace cleave::app
