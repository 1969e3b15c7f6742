// Compares the calls of ranks that wait over Gloo for long. Gloo matches messages by a number that includes
// size and type, so ranks in different calls would only reach the deadline.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace cleave::comm {

class GlooWires;

class GlooWatch {
 public:
  GlooWatch();
  ~GlooWatch();
  GlooWatch(const GlooWatch&) = delete;
  GlooWatch& operator=(const GlooWatch&) = delete;

  void add(GlooWires* wires);
  void remove(GlooWires* wires);  // afterwards, it is not in use and never used again

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GlooWires*> wires_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace cleave::comm
