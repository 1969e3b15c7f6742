#include "comm/watch.h"

namespace cleave::comm {

Watch::Watch(std::chrono::milliseconds interval) : interval_(interval), thread_([this] { run(); }) {}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watch::add(Watched* item) {
  std::lock_guard lock(mutex_);
  items_.push_back(item);
}

void Watch::remove(Watched* item) {
  std::lock_guard lock(mutex_);
  std::erase(items_, item);
}

void Watch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return ending_; }))
    for (Watched* item : items_) item->look();
}

}  // namespace cleave::comm
