// One training on this rank, from its checks to its last checkpoint. It does not depend on a
// command line: the front end provides the options, the job, the ds_config and the data.
#pragma once
#include <memory>

#include "app/planner.h"
#include "app/run/before_run.h"
#include "app/run/run_data.h"
#include "app/run/run_folder.h"
#include "app/run/run_options.h"
#include "app/run/start_weights.h"
#include "app/run/step_recorder.h"
#include "app/run/watch.h"
#include "runtime/step/state_copies.h"

namespace cleave::app {

class Run {
 public:
  // Matches data and model, equally on every rank. `wanted`, `job` and `config` must outlive this.
  // Error(usage), Error(data).
  Run(const RunOptions& wanted, launcher::Job& job, config::ReadResult& config, RunData data);

  // Call before the job is connected: as BeforeRun::check_plan. `reading` are the options that the
  // configuration was read with. Sets the layers that recompute, if the configuration says that they fit.
  void check_plan(const config::ReadOptions& reading);

  // Trains on the connected job. Collective. Returns Exit::ok, or Exit::stopped after a signal.
  // After the loss of a rank that the launcher replaces, connects again with these facts, and continues from
  // the copies of the state in memory.
  Exit train(const comm::Facts& facts);

 private:
  void agree_on_layers();
  void keep_copies();
  // Trains from the state of a checkpoint, the initial weights, or, `again`, the copies in memory.
  Exit train_once(bool again);
  void make_engine(bool again);
  void begin(RunParts& parts);
  void begin_again(RunParts& parts);

  const RunOptions& wanted_;
  launcher::Job& job_;
  config::ReadResult& read_;
  RunData data_;
  const model::ModelConfig model_;
  StartWeights weights_;
  BeforeRun before_;
  Watch watch_;
  RunFolder folder_;
  std::unique_ptr<StepRecorder> step_recorder_;  // null if no step is recorded; outlives the engine
  runtime::StateCopies copies_;                  // empty without cleave.copies_in_memory
  bool measured_ = false;                        // the peak of this machine
  std::unique_ptr<runtime::Engine> engine_;
};

}  // namespace cleave::app
