// When a run saves, what its checkpoints say, and what is made of them at the end.
#pragma once
#include <chrono>
#include <string>

#include "app/run/run_parts.h"

namespace cleave::app {

class Saving {
 public:
  explicit Saving(RunParts& run) : run_(run) {}

  // Collective, as all of this but due() and said(). With the loss of the step that comes next, by which a
  // run that goes on is told from another one.
  void save();
  // Where the run ends with a failure: what there is, at once, and whole before this returns.
  void rescue(const std::string& what);
  // Whether the first rank's clock says that a save is due, or somebody asked for one.
  bool due();
  // Says what was saved behind the training. False where that failed on this rank: then all finish().
  bool look() { return run_.folder.look(run_.engine); }
  void finish() { run_.folder.finish(run_.engine); }

  // Exports what was saved last, or the best. ds_config's own way to ask for it names no folder, so it has
  // one here, which the next end of the training replaces.
  void write_export();

  // For people, where the run ends early: "saving after step 7", or why that is not done.
  std::string said(const std::string& what) const;

 private:
  using Clock = std::chrono::steady_clock;
  nlohmann::json facts() const;

  RunParts& run_;
  Clock::time_point saved_ = Clock::now();
};

}  // namespace cleave::app
