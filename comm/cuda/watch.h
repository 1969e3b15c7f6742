// A thread that looks after calls on a GPU, which nobody on the host waits for.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace cleave::comm {

class Watched {
 public:
  virtual ~Watched() = default;
  virtual void look() = 0;  // often, on the watching thread; must not throw
};

class Watch {
 public:
  explicit Watch(int device);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(Watched* item);
  void remove(Watched* item);  // look() has ended and does not begin again

 private:
  void run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched*> items_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace cleave::comm
