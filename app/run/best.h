// The smallest validation loss of a run, and how long it has been waiting for a smaller one.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace cleave::app {

struct Patience {
  int64_t evaluations = 0;  // in a row that bring nothing before the run ends; 0: it goes on
  double threshold = 0;     // what a loss has to be below the smallest one by, to bring something
};

class Best {
 public:
  explicit Best(Patience patience) : patience_(patience) {}

  // The loss of an evaluation after this step; a second one of the same step says nothing new. True where it
  // is the smallest so far, which one that is no number never is.
  bool take(int64_t step, double loss);
  bool out_of_patience() const { return patience_.evaluations > 0 && waited_ >= patience_.evaluations; }

  int64_t step() const { return step_; }  // of the smallest loss; -1 before the first
  double loss() const { return loss_; }
  int64_t waited() const { return waited_; }  // evaluations since one brought something

  // For the facts of a run (app/run/run_facts.h), under "best"; what is not there leaves all as it is.
  nlohmann::json json() const;
  void restore(const nlohmann::json& facts);

 private:
  Patience patience_;
  int64_t step_ = -1, last_ = -1, waited_ = 0;
  double loss_ = 0;
};

}  // namespace cleave::app
