// Evaluations of a run over all of its sets in order; each sample counts once.
#pragma once
#include <optional>

#include "app/run/ending.h"
#include "app/run/run_parts.h"

namespace cleave::app {

class Evaluations {
 public:
  Evaluations(RunParts& run, Ending& ending) : run_(run), ending_(ending) {}

  // Evaluates all sets. Collective. Returns false if a stop was requested meanwhile. Unreadable
  // data end the run.
  bool evaluate();
  bool due_at_end() const { return !run_.data.evaluation().empty() && evaluated_at_ != run_.engine.step(); }
  double loss() const { return loss_; }  // last loss of the first set

  // Prints a comparison with n-gram models of the same text, on the first rank.
  void say_ngrams() const;

 private:
  std::optional<runtime::Evaluation> evaluate(size_t set);

  RunParts& run_;
  Ending& ending_;
  double loss_ = 0;
  int64_t evaluated_at_ = -1;  // step
};

}  // namespace cleave::app
