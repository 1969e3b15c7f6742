// Who watches a run: people, by lines and a progress bar; scripts, by files; a trace, by what every rank
// does.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "app/run/report.h"
#include "app/run/run_options.h"
#include "comm/communicator.h"
#include "device/trace.h"
#include "launcher/job.h"

namespace cleave::app {

class Watch {
 public:
  // All must outlive this.
  Watch(const RunOptions& wanted, const config::ReadResult& config, launcher::Job& job)
      : wanted_(wanted), config_(config), job_(job) {}

  // Opens the report, whose files can be written by now.
  void open_report() { report_.emplace(job_.first(), wanted_, config_); }
  // Collective, once the job is connected: where the run is traced, or its configuration asks for what is
  // found in a trace.
  void open_trace();

  // A line for the user, on the first rank, where the progress bar may be.
  void say(const std::string& text);

  Report& report() { return *report_; }
  Trace* trace() { return trace_.get(); }  // null: there is none
  // All ranks, each of whose calls the trace sees.
  comm::Communicator& world() { return traced_ ? *traced_ : job_.world(); }

 private:
  const RunOptions& wanted_;
  const config::ReadResult& config_;
  launcher::Job& job_;
  std::optional<Report> report_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<comm::Communicator> traced_;
};

}  // namespace cleave::app
