// Runs the calls of one communicator in host call order, on any streams: a call takes its turn when it is
// enqueued and starts when it is first in line. A call that its stream skips after an earlier failure gives
// up its turn, so that no other call waits for it.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>

namespace cleave::comm {

using Clock = std::chrono::steady_clock;

class Order {
 public:
  class Turn;

  // The turn ends when the last copy of the pointer is destroyed.
  std::shared_ptr<Turn> join() { return std::make_shared<Turn>(line_); }

 private:
  struct Line {
    std::mutex mutex;
    std::condition_variable moved;
    std::set<uint64_t> waiting;
    uint64_t next = 1;
  };
  std::shared_ptr<Line> line_ = std::make_shared<Line>();
};

class Order::Turn {
 public:
  explicit Turn(std::shared_ptr<Line> line) : line_(std::move(line)) {
    std::lock_guard lock(line_->mutex);
    number_ = line_->next++;
    line_->waiting.insert(number_);
  }
  ~Turn() {
    std::lock_guard lock(line_->mutex);
    line_->waiting.erase(number_);
    line_->moved.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  uint64_t number() const { return number_; }  // 1 for the first call of the communicator
  // False if the deadline passes first.
  bool wait_first(Clock::time_point deadline) {
    std::unique_lock lock(line_->mutex);
    return line_->moved.wait_until(lock, deadline, [this] { return *line_->waiting.begin() == number_; });
  }

 private:
  std::shared_ptr<Line> line_;
  uint64_t number_ = 0;
};

}  // namespace cleave::comm
