// Smallest validation loss of a run, and early stopping.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace cleave::app {

struct Patience {
  int64_t evaluations = 0;  // without improvement before the run stops; 0: never
  double threshold = 0;     // minimum improvement
};

class Best {
 public:
  explicit Best(Patience patience) : patience_(patience) {}

  // Records the loss of an evaluation after this step; repeated evaluations of a step are ignored.
  // Returns true if it is the smallest so far, never for NaN.
  bool take(int64_t step, double loss);
  bool out_of_patience() const { return patience_.evaluations > 0 && waited_ >= patience_.evaluations; }

  int64_t step() const { return step_; }  // of the smallest loss; -1 before the first
  double loss() const { return loss_; }
  int64_t waited() const { return waited_; }  // evaluations since the last improvement

  // Entry "best" in the facts of a run (app/run/run_facts.h); missing values leave the state
  // unchanged.
  nlohmann::json json() const;
  void restore(const nlohmann::json& facts);

 private:
  Patience patience_;
  int64_t step_ = -1, last_ = -1, waited_ = 0;
  double loss_ = 0;
};

}  // namespace cleave::app
