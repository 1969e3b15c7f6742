// Lock of a checkpoint folder: a file names the job that has it. It only needs to create, rename
// and read files, because mounts of object stores have no locks.
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
    // The owner rewrites the file at this interval; other machines thereby see that it is alive.
    std::chrono::milliseconds beat{10'000};
    // Time without a rewrite after which a lock of another machine counts as abandoned. Longer than
    // mounts of object stores cache files.
    std::chrono::milliseconds patience{150'000};
    std::function<void(const std::string&)> say = {};  // prints waits and takeovers
    // The job and its attempt, if known. A lock of an earlier attempt of the same job is abandoned: a
    // launcher ends all ranks of an attempt before the next one.
    std::string job_id = {};
    int attempt = 0;
  };

  // Takes the lock. Error(usage) with host, process and time if another job has it. Takes over an
  // abandoned lock: on this host if its process is gone or its id was reused; otherwise (another
  // host, container or boot) if the file is not rewritten for options.patience.
  RunLock(std::filesystem::path file, const Options& options);
  ~RunLock();  // releases the lock
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Creates the file again if it was removed, and returns true if so. Error(checkpoint) names a job
  // that took the lock over while this one was suspended.
  bool require_held();

 private:
  void take(const Options& options);
  bool left_behind(const std::string& holder, const Options& options) const;
  void beat_until_released(std::chrono::milliseconds every);

  const std::filesystem::path file_;
  const std::string mine_;  // text of the file
  std::mutex mutex_;
  std::condition_variable released_;
  bool leaving_ = false;
  std::thread beat_;
};

}  // namespace cleave::app
