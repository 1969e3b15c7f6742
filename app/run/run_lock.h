// One job at a time for a folder of checkpoints: a file in it names the job that has it. Only creating,
// renaming and reading files is asked of the file system, because mounts of object stores have no locks.
#pragma once
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace cleave::app {

class RunLock {
 public:
  struct Options {
    // Whoever has the lock rewrites its file this often; another machine tells by that whether it is alive.
    std::chrono::milliseconds beat{10'000};
    // How long a file must stay as it is until it counts as left behind by a job elsewhere. Longer than
    // mounts of object stores cache files.
    std::chrono::milliseconds patience{150'000};
    std::function<void(const std::string&)> say = {};  // what is waited for, and what was taken over
  };

  // Takes the lock. Error(usage) naming host, process and since when, where another job has it. A lock that
  // was left behind is taken over: on this host when its process is gone, or is another one with that number;
  // on another, in another container or before a reboot, when nobody rewrites it for options.patience.
  RunLock(std::filesystem::path file, const Options& options);
  ~RunLock();  // gives it back
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Makes the file anew where somebody removed it, and says whether it did. Error(checkpoint) naming the job
  // that took the lock over while this one stood still.
  bool require_held();

 private:
  void take(const Options& options);
  bool left_behind(const std::string& holder, const Options& options) const;
  void beat_until_released(std::chrono::milliseconds every);

  const std::filesystem::path file_;
  const std::string mine_;  // the file's text
  std::mutex mutex_;
  std::condition_variable released_;
  bool leaving_ = false;
  std::thread beat_;
};

}  // namespace cleave::app
