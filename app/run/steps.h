// The steps of a run, each with what is told of it.
#pragma once
#include "app/run/run_parts.h"
#include "app/run/saving.h"

namespace cleave::app {

class Steps {
 public:
  Steps(RunParts& run, Saving& saving) : run_(run), saving_(saving) {}

  // Collective. A step that cannot be taken leaves the state before it, which all save: then Error(data)
  // names its samples, Error(training) what went wrong.
  void take();

 private:
  runtime::StepResult train_or_save(const BatchSource& data);

  RunParts& run_;
  Saving& saving_;
};

}  // namespace cleave::app
