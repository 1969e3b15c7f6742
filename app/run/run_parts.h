#pragma once
#include <nlohmann/json.hpp>

#include "app/run/best.h"
#include "app/run/profile.h"
#include "app/run/run_data.h"
#include "app/run/run_folder.h"
#include "app/run/run_options.h"
#include "app/run/watch.h"
#include "launcher/job.h"
#include "runtime/engine.h"

namespace cleave::app {

// What a run has of everything once its engine is there; all of it outlives the steps.
struct RunParts {
  const RunOptions& wanted;
  launcher::Job& job;
  runtime::Engine& engine;
  const RunData& data;
  data::TokenBatches& batches;
  DataPlace place;
  RunFolder& folder;
  Watch& watch;
  Profile& profile;
  EpochLength epoch;     // and where the run began to count in it
  Best best;             // of the evaluations so far
  nlohmann::json facts;  // what checkpoints say of this run
};

}  // namespace cleave::app
