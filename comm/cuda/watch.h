// Watches GPU calls that no host thread waits for.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace cleave::comm {

class Watched {
 public:
  virtual ~Watched() = default;
  virtual void look() = 0;  // called often on the watching thread; must not throw
};

class Watch {
 public:
  explicit Watch(int device);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void add(Watched* item);
  void remove(Watched* item);  // afterwards, look() does not run and is not called again

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
