// The folder of a run's checkpoints: one job at a time, which checkpoint to go on from, and which old ones to
// let go. Only the first rank looks into it; what it finds, all ranks do.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/run/kept_checkpoints.h"
#include "app/run/resume_candidates.h"
#include "app/run/run_lock.h"
#include "checkpoint/checkpoint.h"
#include "launcher/job.h"
#include "runtime/engine.h"
#include "runtime/saved_training.h"

namespace cleave::app {

struct RunFolderOptions {
  std::string dir;              // empty: nothing is saved or resumed
  std::string resume = "auto";  // auto, required, never, or a checkpoint's name
  KeepRule keep;                // of what this run saved
  bool strict = false;          // changed facts are errors
  bool reset_optimizer = false;
  bool reset_adapters = false;  // those that this run has no place for are dropped
};

class RunFolder {
 public:
  using Say = std::function<void(const std::string&)>;  // to the user, from the first rank

  RunFolder(RunFolderOptions options, launcher::Job& job, Say say);

  // Collective, before the folder is made: Error(checkpoint) when a checkpoint is wanted and cannot be there.
  void require_something_to_resume();
  // Collective. Takes the folder for this job; `deadline` is that of the other ranks' waiting. Error(usage)
  // when another job has it.
  void take(std::chrono::milliseconds deadline);

  // Collective. Goes on from the newest checkpoint that is whole, beginning with the one that `latest` names,
  // and says which newer ones were passed over and why; compares `facts` with those it was saved with. False
  // where the folder has no checkpoint: the run begins. Error(checkpoint) where it has some and none can be
  // used. Removes what killed saves left.
  bool resume(runtime::Engine& engine, const nlohmann::json& facts);

  // What the checkpoint that was resumed says of its run; null where none was.
  const nlohmann::json& resumed_facts() const { return *resumed_; }

  // The first rank looks whether somebody made the file `save_now` in the folder, and removes it.
  bool asked_to_save();

  // Whether save() has something to do.
  bool would_save(const runtime::Engine& engine) const {
    return !options_.dir.empty() && saved_at_ != engine.step();
  }
  // Collective. Saves this step unless it is saved, and removes of what this run saved what
  // steps_to_let_go() names. What another run saved stays, and so does whatever is no checkpoint. Where the
  // engine saves behind the training, that goes on, and the save before is finished first.
  void save(runtime::Engine& engine, const nlohmann::json& facts);
  // From the next save on, the checkpoint of this step stays while it is the one, and the file `best` names
  // it.
  void keep_best(int64_t step) { next_best_ = step; }
  // Collective. Waits until what was begun is saved, and throws what went wrong.
  void finish(runtime::Engine& engine);
  // Says what was saved meanwhile. False where that went wrong on this rank: then all have to finish().
  bool look(const runtime::Engine& engine);

 private:
  runtime::SavedTraining saved_training(const std::string& tag, const nlohmann::json& facts,
                                        const std::string& prefix) const;
  void require_adapters(const runtime::SavedTraining& saved, const nlohmann::json& facts,
                        const std::string& prefix) const;
  bool is_damaged(const std::string& tag) const;
  void remember(const std::string& client);
  void remove_left_overs(const std::string& in_use, int64_t step);
  void compare(const std::string& client, const nlohmann::json& facts, std::vector<std::string> changes);
  void written(const checkpoint::SavedCheckpoint& saved, int64_t step);
  void let_old_ones_go(int64_t step);
  void tell(const std::string& text);

  const RunFolderOptions options_;
  launcher::Job& job_;
  const Say say_;
  std::optional<RunLock> lock_;
  std::chrono::steady_clock::time_point looked_;  // for `save_now`
  std::string run_;  // what tells this run's checkpoints from those of others; kept over resumes
  std::vector<FoundCheckpoint> mine_;     // whole checkpoints of this run in the folder, on the first rank
  std::vector<std::string> passed_over_;  // those that a resume found damaged; they stay to be looked at
  std::unique_ptr<nlohmann::json> resumed_;
  int64_t saved_at_ = -1;
  int64_t best_ = -1, next_best_ = -1;  // steps; the first is read by the thread that saves
  // Written by the thread that saves behind the training.
  std::mutex mutex_;
  std::vector<std::string> news_;  // to be said
  bool in_place_ = false;          // the file system renames no folders, and that was said
};

}  // namespace cleave::app
