// Hosts of a job's attempts. Before a restart, the hostfile is read again. --elastic_training also leaves out
// hosts that do not answer, and hosts that the batch size does not divide over. While ranks run, it looks for
// better hosts, and then asks the ranks to save and stop, so that the job continues on these.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "app/start/launch_start.h"
#include "launcher/role.h"

namespace cleave::app {

class Attempts {
 public:
  using Say = std::function<void(const std::string&)>;

  // The first attempt. Throws Error(usage), and Error(rank_lost) if too few hosts answer for ten minutes.
  Attempts(const LaunchRequest& request, const launcher::Environment& env, const launcher::LauncherRole& role,
           Say say);
  ~Attempts() { end_watch(); }
  Attempts(const Attempts&) = delete;
  Attempts& operator=(const Attempts&) = delete;

  const LaunchStart& now() const { return now_; }
  // Chooses the hosts of the next attempt. Throws Error(rank_lost) as the constructor.
  void next();

  // Looks for better hosts on a thread of its own, if the job is elastic.
  void watch();
  void end_watch();
  bool found_better() const { return found_better_; }  // since watch(); any thread

 private:
  bool reads_hostfile() const;
  launcher::Hosts enough_hosts() const;
  launcher::Hosts chosen(launcher::Hosts hosts, bool says) const;
  bool better_exist() const;
  void look_until_ended();

  const LaunchRequest& request_;
  const launcher::Environment& env_;
  const bool of_other_launcher_;
  const Say say_;
  const JobName job_;
  LaunchStart now_;
  std::atomic<bool> found_better_{false};
  std::mutex mutex_;
  std::condition_variable end_;
  bool ending_ = false;
  std::thread looks_;
};

}  // namespace cleave::app
