// Where callers of a rank's listener wait until they have proven that they have the secret
// (comm/rendezvous/handshake.h). However many strangers call, they take a bounded number of descriptors, keep
// nobody waiting, and do not keep callers from other addresses out.
#pragma once
#include <poll.h>

#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/rendezvous/handshake.h"

namespace cleave::comm {

// A caller that said hello.
struct Guest {
  Socket socket;
  Greeting greeting;
  bool proven = false;  // else it was told that its secret is wrong
  std::string in = {};  // what it has said since
};

class Reception {
 public:
  // `expected`: so many callers may come at once from one address.
  Reception(Socket listener, Purpose purpose, std::string secret, size_t expected);

  // What it waits for, at the end of `polls`.
  void add_to(std::vector<pollfd>& polls) const;
  // What poll() said of that. Takes new callers, and returns those that have said hello. Never waits.
  std::vector<Guest> receive(std::span<const pollfd> polls);

  const Socket& listener() const { return listener_; }
  size_t waiting() const { return callers_.size(); }

 private:
  struct Caller {
    Guest guest;
    std::string network;
    Clock::time_point since = Clock::now();
  };
  using At = std::list<Caller>::iterator;

  bool hear(Caller& caller, std::vector<Guest>& guests);  // false: done with it
  void accept_new(std::vector<Guest>& guests);
  bool drop_oldest(const std::string& network);
  std::string most_frequent() const;
  At drop(At caller);

  Socket listener_;
  const Purpose purpose_;
  const std::string secret_;
  const size_t most_;          // callers from one network
  std::list<Caller> callers_;  // the oldest first
  std::map<std::string, size_t> of_network_;
  Clock::time_point accept_after_ = Clock::time_point::min();  // no descriptor is left until then
};

}  // namespace cleave::comm
