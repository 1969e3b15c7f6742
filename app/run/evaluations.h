// A run's evaluations: all of its sets, one after the other, each of whose samples count once.
#pragma once
#include <optional>

#include "app/run/ending.h"
#include "app/run/run_parts.h"

namespace cleave::app {

class Evaluations {
 public:
  Evaluations(RunParts& run, Ending& ending) : run_(run), ending_(ending) {}

  // Collective. False where a stop was asked for meanwhile. Data that cannot be read end the run.
  bool evaluate();
  bool due_at_end() const { return !run_.data.evaluation().empty() && evaluated_at_ != run_.engine.step(); }
  double loss() const { return loss_; }  // of the first set, at last

  // The first rank says how that compares with n-gram models of the same text.
  void say_ngrams() const;

 private:
  std::optional<runtime::Evaluation> evaluate(size_t set);

  RunParts& run_;
  Ending& ending_;
  double loss_ = 0;
  int64_t evaluated_at_ = -1;  // step
};

}  // namespace cleave::app
