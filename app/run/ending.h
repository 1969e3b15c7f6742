// What ends a run: its steps, a signal, evaluations that bring nothing, data that cannot be read.
#pragma once
#include <exception>

#include "app/run/run_parts.h"
#include "app/run/saving.h"

namespace cleave::app {

class Ending {
 public:
  // The first step's data are there. Collective. Error(data).
  Ending(RunParts& run, Saving& saving);

  bool over() const { return at_end() || stopped_ || run_.best.out_of_patience(); }
  bool at_end() const { return run_.engine.step() >= run_.wanted.steps; }
  bool stopped() const { return stopped_; }  // on request

  // After a step, once its successor's data are there; finds out whether any rank was asked to stop. True
  // where one was asked to save, or it is time to. When one cannot read what the next step needs, all save
  // and then throw its Error(data); when one could not save behind the training, all throw why.
  bool vote_to_save();
  // Within an evaluation: whether any rank was asked to stop. Collective.
  bool vote_to_stop() { return stopped_ = run_.job.any(launcher::Job::stop_requested()); }
  // Where any rank has a failure, and this one perhaps: all save and throw it. Collective.
  [[noreturn]] void save_and_throw(const std::exception_ptr& failure);
  // Reports early stopping.
  void say_early() const;

 private:
  void read_ahead();

  RunParts& run_;
  Saving& saving_;
  bool stopped_ = false;
};

}  // namespace cleave::app
