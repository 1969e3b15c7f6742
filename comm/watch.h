// A thread that looks at calls for which no other thread looks out: those on a GPU, and slow ones.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace cleave::comm {

class Watched {
 public:
  virtual ~Watched() = default;
  // Called on the watching thread, whose time all items of the watch share. Must not throw or call CUDA.
  virtual void look() = 0;
};

class Watch {
 public:
  explicit Watch(std::chrono::milliseconds interval);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(Watched* item);
  void remove(Watched* item);  // afterwards, look() does not run and is not called again

 private:
  void run();

  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched*> items_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace cleave::comm
