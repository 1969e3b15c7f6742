// Ranks as real processes: forked children that connect through the rendezvous, as in a job.
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
  int exit = -1;        // result of the body, or -signal
  std::string message;  // of the exception, if one was thrown
};

// One child. An exception of its body becomes the message; the exit code is that of an Error, otherwise 1.
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

// Forks `size` children that connect with these options and run `body`.
std::vector<Child> start_ranks(int size, const comm::ConnectOptions& options,
                               const std::function<void(comm::World&)>& body);
std::vector<Ended> wait_all(std::vector<Child>& children);

}  // namespace cleave::comm::test
