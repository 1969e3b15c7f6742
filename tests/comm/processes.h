// Ranks as real processes: forked children that meet over the rendezvous, the way a job does.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/rendezvous/rendezvous.h"

namespace cleave::comm::test {

int free_port();

struct Ended {
  int exit = -1;        // what the body returned, or -signal
  std::string message;  // of the exception, if one was thrown
};

// One child; its body's exception becomes the message, and its exit code that of an Error, 1 otherwise.
class Child {
 public:
  explicit Child(const std::function<int()>& body);
  ~Child();  // kills it if it still runs
  Child(Child&& other) noexcept;
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  Ended wait(std::chrono::seconds limit = std::chrono::seconds(30));

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

comm::RankInfo rank_of(int rank, int world, int port);

// Forks `size` children that connect with these options and run body.
std::vector<Child> start_ranks(int size, const comm::ConnectOptions& options,
                               const std::function<void(comm::World&)>& body);
std::vector<Ended> wait_all(std::vector<Child>& children);

}  // namespace cleave::comm::test
