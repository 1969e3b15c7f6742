// Saves of a run: their times, facts and final export.
#pragma once
#include <chrono>
#include <string>

#include "app/run/run_parts.h"

namespace cleave::app {

class Saving {
 public:
  explicit Saving(RunParts& run) : run_(run) {}

  // Saves with the loss of the next step, which identifies the training when it is resumed.
  // Collective, as all functions here except due() and said().
  void save();
  // Saves before the run ends with a failure, and waits until the checkpoint is complete.
  void rescue(const std::string& what);
  // Returns true if a save is due by the first rank's clock, or requested.
  bool due();
  // Prints finished background saves. Returns false after a failure on this rank; then all ranks
  // must call finish().
  bool look() { return run_.folder.look(run_.engine); }
  void finish() { run_.folder.finish(run_.engine); }

  // Exports the last or the best checkpoint. The ds_config's key names no folder, so the export
  // uses a default folder here, which the next end of the training replaces.
  void write_export();

  // Returns the entry of a checkpoint for a copy of the state in memory.
  nlohmann::json entry() const { return run_.folder.with_run(facts()); }

  // Returns, for an early end, "saving after step 7", or the reason why nothing is saved.
  std::string said(const std::string& what) const;

 private:
  using Clock = std::chrono::steady_clock;
  nlohmann::json facts() const;

  RunParts& run_;
  Clock::time_point saved_ = Clock::now();
};

}  // namespace cleave::app
