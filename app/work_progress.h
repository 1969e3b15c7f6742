// How far long work is that is no training, on stderr: one line that is drawn again on a terminal, elsewhere
// a line now and then.
#pragma once
#include <chrono>
#include <string>

namespace cleave {

class WorkProgress {
 public:
  // "evaluated 12 of 90 batches": what is said around the numbers. Not shown: says nothing.
  WorkProgress(std::string before, std::string behind, bool shown);
  ~WorkProgress();
  WorkProgress(const WorkProgress&) = delete;
  WorkProgress& operator=(const WorkProgress&) = delete;

  // So much is done of all. From one thread at a time.
  void at(int64_t done, int64_t all);

 private:
  using Clock = std::chrono::steady_clock;
  const std::string before_, behind_;
  const bool shown_, terminal_;
  bool drawn_ = false;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point said_ = begin_;
};

}  // namespace cleave
