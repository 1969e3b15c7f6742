// Initial weights of a training: those of a published model, or random ones.
#pragma once
#include <optional>
#include <string>

#include "app/published_model.h"
#include "app/run/run_options.h"
#include "launcher/job.h"
#include "runtime/engine.h"

namespace cleave::app {

class StartWeights {
 public:
  // Both must outlive this.
  StartWeights(const RunOptions& wanted, const model::ModelConfig& model) : wanted_(wanted), model_(model) {}

  // Opens the weights. Error(usage) for a folder without weights, Error(checkpoint) for weights of
  // another model.
  void find();
  // Loads the weights into the engine unless they are random, copies the files of their model next
  // to the checkpoints, and returns their origin for people. Collective. Only for runs that do not
  // resume.
  std::string load(runtime::Engine& engine, launcher::Job& job);

 private:
  const RunOptions& wanted_;
  const model::ModelConfig& model_;
  std::optional<PublishedModel> published_;
};

}  // namespace cleave::app
