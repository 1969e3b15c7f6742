// Steps of a run, with their reports.
#pragma once
#include "app/run/run_parts.h"
#include "app/run/saving.h"

namespace cleave::app {

class TrainingSteps {
 public:
  TrainingSteps(RunParts& run, Saving& saving) : run_(run), saving_(saving) {}

  // Takes one step. Returns false if the step was bad and the run is back at a checkpoint. Collective. If a
  // step fails, all ranks save the state before it; then Error(data) names its samples, Error(training) the
  // cause.
  bool take();

 private:
  runtime::StepResult train_or_save(std::span<const Batch> batches, const std::function<void(int)>& begins);

  void offer_copies(int64_t step);

  RunParts& run_;
  Saving& saving_;
};

}  // namespace cleave::app
