// Checkpoint folder of a run: lock, resume, save, and removal of old checkpoints. Only the first
// rank reads the folder; all ranks act on the result.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/run/kept_checkpoints.h"
#include "app/run/resume_candidates.h"
#include "app/run/run_lock.h"
#include "checkpoint/checkpoint.h"
#include "launcher/job.h"
#include "monitor/event.h"
#include "runtime/engine.h"
#include "runtime/saved_training.h"

namespace cleave::app {

struct RunFolderOptions {
  std::string dir;                              // empty: no saves and no resume
  std::string resume = "auto";                  // auto, required, never, or the name of a checkpoint
  KeepRule keep;                                // for checkpoints of this run
  bool strict = false;                          // changed facts are errors
  std::vector<std::string> follows_steps = {};  // keys of the ds_config that --steps sets
  bool reset_optimizer = false;
  bool reset_adapters = false;  // drop adapters that this run does not have
};

class RunFolder {
 public:
  using Say = std::function<void(const std::string&)>;  // prints for the user, on the first rank

  // Called for each saved and loaded checkpoint, on the first rank; for a background save, on its thread.
  using Report = std::function<void(monitor::Checkpointed)>;

  RunFolder(RunFolderOptions options, launcher::Job& job, Say say, Report report);

  // Call before the folder is created. Error(checkpoint) if a required checkpoint cannot exist.
  // Collective.
  void require_something_to_resume();
  // Takes the folder for this job; `deadline` is how long the other ranks wait. Error(usage) if
  // another job has it. Collective.
  void take(std::chrono::milliseconds deadline);

  // Resumes from the newest complete checkpoint, starting with the one in `latest`, and prints
  // skipped newer ones with the reason; compares `facts` with the saved ones. Returns false if the
  // folder has no checkpoint. Error(checkpoint) if none of its checkpoints can be used. Removes
  // incomplete saves. Collective.
  bool resume(runtime::Engine& engine, const nlohmann::json& facts);

  // Goes back to the newest complete checkpoint that this run has saved. Returns its tag, or nothing if there
  // is none; resumed_facts() are then its facts. Collective.
  std::string roll_back(runtime::Engine& engine, const nlohmann::json& facts);
  // Continues at a step from a copy of the state in memory, with the facts (with_run()) that it has. Returns
  // true if the loss of a rank interrupted a save of this step or an earlier one. Collective.
  bool continue_at(int64_t step, const std::string& client);
  // Adds the entries of checkpoints that identify the run.
  nlohmann::json with_run(nlohmann::json facts) const;

  // Returns the facts of the resumed checkpoint; null without one.
  const nlohmann::json& resumed_facts() const { return *resumed_; }

  // Returns true on the first rank if the file `save_now` exists in the folder, and removes it.
  bool asked_to_save();

  // Returns true if save() would write a checkpoint.
  bool would_save(const runtime::Engine& engine) const {
    return !options_.dir.empty() && saved_at_ != engine.step();
  }
  // Saves this step unless it is saved, and removes the checkpoints of this run that
  // steps_to_let_go() returns. Checkpoints of other runs and other files stay. A background save
  // continues after the return; the previous one is finished first. Collective.
  void save(runtime::Engine& engine, const nlohmann::json& facts);
  // From the next save on, keeps the checkpoint of this step while it is the best, and names it in
  // the file `best`.
  void keep_best(int64_t step) { next_best_ = step; }
  // Waits for a background save and throws its error. Collective.
  void finish(runtime::Engine& engine);
  // Prints finished background saves. Returns false after a failure on this rank; then all ranks
  // must call finish().
  bool look(const runtime::Engine& engine);

 private:
  runtime::SavedTraining saved_training(const std::string& tag, const nlohmann::json& facts,
                                        const std::string& prefix) const;
  void require_adapters(const runtime::SavedTraining& saved, const nlohmann::json& facts,
                        const std::string& prefix) const;
  bool is_damaged(const std::string& tag) const;
  void remember(const std::string& client);
  void remove_left_overs(const std::string& in_use, int64_t step);
  bool remove_unfinished(int64_t step) const;
  void compare(const std::string& client, const nlohmann::json& facts, std::vector<std::string> changes);
  void report(monitor::Checkpointed::Kind kind, const std::string& tag, int64_t step,
              std::chrono::steady_clock::time_point begin) const;
  void written(const checkpoint::SavedCheckpoint& saved, int64_t step);
  void let_old_ones_go(int64_t step);
  void tell(const std::string& text);

  const RunFolderOptions options_;
  launcher::Job& job_;
  const Say say_;
  const Report report_;
  std::optional<RunLock> lock_;
  std::chrono::steady_clock::time_point looked_;  // last check for `save_now`
  std::string run_;                               // identifies the checkpoints of this run; kept over resumes
  std::vector<FoundCheckpoint> mine_;             // complete checkpoints of this run, on the first rank
  std::vector<std::string> passed_over_;  // damaged checkpoints found by a resume; they stay for inspection
  std::unique_ptr<nlohmann::json> resumed_;
  int64_t saved_at_ = -1;
  int64_t resumed_at_ = -1;
  std::set<int64_t> saved_here_;        // steps that this process has saved, on the first rank
  int64_t reset_at_ = -1;               // step of a resume that dropped a part of the state
  int64_t best_ = -1, next_best_ = -1;  // steps; the saving thread reads the first
  // Written by the thread of a background save.
  std::mutex mutex_;
  std::vector<std::string> news_;  // to be printed
  bool in_place_ = false;          // printed that the file system cannot rename folders
};

}  // namespace cleave::app
