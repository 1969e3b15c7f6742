#include "comm/gloo/gloo_watch.h"

#include <chrono>

#include "comm/gloo/gloo_exchange.h"

namespace cleave::comm {

GlooWatch::GlooWatch() : thread_([this] { run(); }) {}

GlooWatch::~GlooWatch() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GlooWatch::add(GlooWires* wires) {
  std::lock_guard lock(mutex_);
  wires_.push_back(wires);
}

void GlooWatch::remove(GlooWires* wires) {
  std::lock_guard lock(mutex_);
  std::erase(wires_, wires);
}

void GlooWatch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return ending_; }))
    for (GlooWires* wires : wires_) wires->compare_slow_calls();
}

}  // namespace cleave::comm
