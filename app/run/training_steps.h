// TrainingSteps of a run and their reports.
#pragma once
#include "app/run/run_parts.h"
#include "app/run/saving.h"

namespace cleave::app {

class TrainingSteps {
 public:
  TrainingSteps(RunParts& run, Saving& saving) : run_(run), saving_(saving) {}

  // Takes one step. Collective. If a step fails, all ranks save the state before it; then
  // Error(data) names its samples, Error(training) the cause.
  void take();

 private:
  runtime::StepResult train_or_save(const BatchSource& data);

  RunParts& run_;
  Saving& saving_;
};

}  // namespace cleave::app
