// Reports the loss of the job to every group of this process, from the thread that detects it first.
#pragma once
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace cleave::comm {

// Interface of objects with cancelable waits. poison() may be called from any thread; the first reason wins.
// It must not use the alarm.
class Poisonable {
 public:
  virtual ~Poisonable() = default;
  virtual void poison(const std::string& reason) = 0;
};

class Alarm {
 public:
  explicit Alarm(std::function<void(const std::string&)> heard = {}) : heard_(std::move(heard)) {}

  // A group is registered from the end of its constructor to the start of its destructor. add() poisons it at
  // once if the alarm has already rung.
  void add(Poisonable* group) {
    std::lock_guard lock(mutex_);
    groups_.push_back(group);
    if (!reason_.empty()) group->poison(reason_);
  }
  void remove(Poisonable* group) {
    std::lock_guard lock(mutex_);
    std::erase(groups_, group);
  }

  // Passes the first loss to the function of the constructor. Groups call it before their waits end.
  void notice(const std::string& reason) {
    if (heard_ && !noticed_.exchange(true)) heard_(reason);
  }

  // Poisons all groups; only the first reason counts. An explained loss is not noticed.
  void ring(const std::string& reason, bool explained = false) {
    if (!explained) notice(reason);
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    // The lock keeps groups alive meanwhile; this thread must not destroy any.
    for (Poisonable* group : groups_) group->poison(reason);
  }

  // Empty if the alarm has not rung.
  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  const std::function<void(const std::string&)> heard_;
  std::atomic<bool> noticed_ = false;
  mutable std::mutex mutex_;
  std::vector<Poisonable*> groups_;
  std::string reason_;
};

}  // namespace cleave::comm
