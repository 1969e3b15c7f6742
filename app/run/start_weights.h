// Whose weights a training begins with: those of a published model, or random ones.
#pragma once
#include <optional>

#include "app/published_model.h"
#include "app/run/run_options.h"
#include "app/run/watch.h"
#include "launcher/job.h"
#include "runtime/engine.h"

namespace cleave::app {

class StartWeights {
 public:
  // Both must outlive this.
  StartWeights(const RunOptions& wanted, const model::ModelConfig& model) : wanted_(wanted), model_(model) {}

  // Opens what is wanted. Error(usage) for a folder without weights, Error(checkpoint) for others than the
  // model's.
  void find();
  // Gives them to the engine, unless it has them by its seed, says which, and leaves what belongs to them
  // beside the checkpoints. Collective. A run that goes on with a checkpoint needs none of this.
  void load(runtime::Engine& engine, launcher::Job& job, Watch& watch);

 private:
  const RunOptions& wanted_;
  const model::ModelConfig& model_;
  std::optional<PublishedModel> published_;
};

}  // namespace cleave::app
