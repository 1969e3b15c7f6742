#pragma once
#include <nlohmann/json.hpp>
#include <optional>

#include "app/run/best.h"
#include "app/run/recorder.h"
#include "app/run/run_data.h"
#include "app/run/run_folder.h"
#include "app/run/run_options.h"
#include "app/run/step_recorder.h"
#include "app/run/watch.h"
#include "launcher/job.h"
#include "monitor/profile.h"
#include "runtime/engine.h"
#include "runtime/step/state_copies.h"

namespace cleave::app {

// Parts of a run after its engine exists; all outlive the steps.
struct RunParts {
  const RunOptions& wanted;
  launcher::Job& job;
  runtime::Engine& engine;
  const RunData& data;
  data::TokenBatches& batches;
  DataPlace place;
  RunFolder& folder;
  Watch& watch;
  monitor::Profile& profile;
  EpochLength epoch;     // and the position at which the run started to count
  Best best;             // evaluation so far
  nlohmann::json facts;  // entry of this run in checkpoints
  std::optional<Recorder> recorder = {};
  StepRecorder* step_recorder = nullptr;  // of cleave.record_steps
  int64_t skipped = 0;  // steps whose data this run skipped before it was resumed (app/run/roll_back.h)
  runtime::StateCopies* copies = nullptr;  // null: none are kept
  bool replaced = false;                   // a lost rank was replaced; no step was taken since
  bool unfinished_save = false;            // its loss interrupted a save
};

}  // namespace cleave::app
