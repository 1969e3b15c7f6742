// Reasons that end a run: its last step, a signal, early stopping, unreadable data.
#pragma once
#include <exception>

#include "app/run/run_parts.h"
#include "app/run/saving.h"

namespace cleave::app {

class Ending {
 public:
  // Reads the data of the first step. Collective. Error(data).
  Ending(RunParts& run, Saving& saving);

  bool over() const { return at_end() || stopped_ || run_.best.out_of_patience(); }
  bool at_end() const { return run_.engine.step() >= run_.wanted.steps; }
  bool stopped() const { return stopped_; }  // on request

  // Call after a step, when the data of the next one are read; checks if any rank was asked to
  // stop. Returns true if a save is requested or due. If a rank cannot read the next data, all
  // ranks save and throw its Error(data); if a background save failed, all throw its error.
  bool vote_to_save();
  // Checks within an evaluation if any rank was asked to stop. Collective.
  bool vote_to_stop() { return stopped_ = run_.job.any(launcher::Job::stop_requested()); }
  // Saves on all ranks and throws the failure of any rank. Collective.
  [[noreturn]] void save_and_throw(const std::exception_ptr& failure);
  // Prints that early stopping ended the run.
  void say_early() const;

 private:
  void read_ahead();

  RunParts& run_;
  Saving& saving_;
  bool stopped_ = false;
};

}  // namespace cleave::app
