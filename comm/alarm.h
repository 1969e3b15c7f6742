// Tells every group of this process that the job is lost, from whichever thread learns it first.
#pragma once
#include <mutex>
#include <string>
#include <vector>

namespace cleave::comm {

// What waits and can be made to give up. poison() may be called from any thread; the first reason wins. It
// must not touch the alarm.
class Poisonable {
 public:
  virtual ~Poisonable() = default;
  virtual void poison(const std::string& reason) = 0;
};

class Alarm {
 public:
  // A group is here from the end of its constructor until the start of its destructor. One that comes after
  // the alarm is poisoned at once.
  void add(Poisonable* group) {
    std::lock_guard lock(mutex_);
    groups_.push_back(group);
    if (!reason_.empty()) group->poison(reason_);
  }
  void remove(Poisonable* group) {
    std::lock_guard lock(mutex_);
    std::erase(groups_, group);
  }

  // The first reason counts.
  void ring(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    // The lock keeps groups alive meanwhile; none may be destroyed on this thread.
    for (Poisonable* group : groups_) group->poison(reason);
  }

  // Empty while all is well.
  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Poisonable*> groups_;
  std::string reason_;
};

}  // namespace cleave::comm
