#include "comm/cuda/watch.h"

#include <cuda_runtime_api.h>

#include <chrono>

namespace cleave::comm {

Watch::Watch(int device) : device_(device), thread_([this] { run(); }) {}

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
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return ending_; }))
    for (Watched* item : items_) item->look();
}

}  // namespace cleave::comm
