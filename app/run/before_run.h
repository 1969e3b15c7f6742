// Checks before the first step, so that hours of training do not end in an error that was known at
// the start.
#pragma once
#include "app/planner.h"
#include "app/run/run_parts.h"

namespace cleave::app {

class BeforeRun {
 public:
  // All must outlive this.
  BeforeRun(const RunOptions& wanted, const config::ReadResult& config, launcher::Job& job)
      : wanted_(wanted), read_(config), config_(config.config), job_(job) {}

  // Checks before anything is started, equal on every rank: Error(usage) if an output would
  // overwrite an input, Error(data) if data are too short, Error(memory) if the plan of the whole
  // job exceeds the limits or the memory of this machine. For small jobs, also proves that the
  // calls of all ranks match.
  void check_plan(const Planner& planner, const RunData& data);

  // Checks by each rank, with a common result: every rank has the memory and can write its files,
  // no other job uses the folder, and the evaluation data have no invalid token. Opens report and
  // trace, and takes the folder.
  void check_ranks(const RunData& data, RunFolder& folder, Watch& watch) const;
  // Opens report and trace and takes the folder, as far as this process has not, after lost ranks were
  // replaced. Collective.
  void join_again(RunFolder& folder, Watch& watch) const;

 private:
  void require_gpu() const;
  void check_recorded(const plan::JobPlan& plan) const;

  const RunOptions& wanted_;
  const config::ReadResult& read_;
  const config::DsConfig& config_;
  launcher::Job& job_;
  int64_t device_bytes_ = 0;  // plan of this rank
};

// Compares the loss of the next step of a resumed run with the loss in the checkpoint, before
// training. Error(checkpoint) if they differ. Collective.
void check_first_loss(RunParts& run);

}  // namespace cleave::app
