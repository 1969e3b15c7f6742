// Tells every group of this process that the job is lost, from whichever thread learns it first.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cleave {

// What waits and can be made to give up. poison() may be called from any thread; the first reason wins.
class Poisonable {
 public:
  virtual ~Poisonable() = default;
  virtual void poison(const std::string& reason) = 0;
};

class Alarm {
 public:
  // A group that is added after the alarm is poisoned at once.
  void add(std::weak_ptr<Poisonable> group) {
    std::string reason;
    {
      std::lock_guard lock(mutex_);
      std::erase_if(groups_, [](const auto& g) { return g.expired(); });
      groups_.push_back(group);
      reason = reason_;
    }
    if (reason.empty()) return;
    if (auto g = group.lock()) g->poison(reason);
  }

  void ring(const std::string& reason) {
    std::vector<std::weak_ptr<Poisonable>> groups;
    {
      std::lock_guard lock(mutex_);
      if (!reason_.empty()) return;
      reason_ = reason;
      groups = groups_;
    }
    for (auto& group : groups)
      if (auto g = group.lock()) g->poison(reason);
  }

  // Empty while all is well.
  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Poisonable>> groups_;
  std::string reason_;
};

}  // namespace cleave
