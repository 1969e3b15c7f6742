// What is checked before the first step, so that hours of training do not end in a fault known at the start.
#pragma once
#include "app/planner.h"
#include "app/run/run_parts.h"

namespace cleave::app {

class BeforeRun {
 public:
  // All must outlive this.
  BeforeRun(const RunOptions& wanted, const config::ReadResult& config, launcher::Job& job)
      : wanted_(wanted), read_(config), config_(config.config), job_(job) {}

  // Before anything is started, alike on every rank: Error(usage) where an output would overwrite an input,
  // Error(data) where data are too short, Error(memory) when the plan of the whole job exceeds the limits or
  // this machine has too little for its ranks. Small jobs also prove that the calls of all ranks fit
  // together.
  void check_plan(const Planner& planner, const model::ModelConfig& model, const RunData& data);

  // What one rank may find out alone, and then all: every rank has the memory and can write its files, nobody
  // else has the folder, and the evaluation data have no token that would end the last evaluation. Opens
  // report and trace, and takes the folder.
  void check_ranks(const RunData& data, RunFolder& folder, Watch& watch) const;

 private:
  void require_gpu() const;

  const RunOptions& wanted_;
  const config::ReadResult& read_;
  const config::DsConfig& config_;
  launcher::Job& job_;
  int64_t device_bytes_ = 0;  // of this rank, as planned
};

// Computes the loss of the next step of a run that goes on, before anything is trained. Error(checkpoint)
// where it is not the one that the checkpoint keeps. Collective.
void check_first_loss(RunParts& run);

}  // namespace cleave::app
