// Waiting room for callers of a rank's listener until they prove that they have the secret
// (comm/rendezvous/handshake.h). Any number of strangers takes a bounded number of descriptors, delays no
// rank, and does not block callers from other addresses.
#pragma once
#include <poll.h>

#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/rendezvous/handshake.h"

namespace cleave::comm {

// A caller that sent its hello.
struct Guest {
  Socket socket;
  Greeting greeting;
  bool proven = false;  // false: it was told that its secret is wrong
  std::string in = {};  // bytes received after the hello
};

class Reception {
 public:
  // `expected`: number of simultaneous callers from one address to allow.
  Reception(Socket listener, Purpose purpose, std::string secret, size_t expected);

  // Appends its descriptors to `polls`.
  void add_to(std::vector<pollfd>& polls) const;
  // Handles the results of poll() for these descriptors: accepts new callers, and returns those that sent
  // their hello. Never waits.
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

  bool hear(Caller& caller, std::vector<Guest>& guests);  // false: drop the caller
  void accept_new(std::vector<Guest>& guests);
  bool drop_oldest(const std::string& network);
  std::string most_frequent() const;
  At drop(At caller);

  Socket listener_;
  const Purpose purpose_;
  const std::string secret_;
  const size_t most_;          // callers from one network
  std::list<Caller> callers_;  // oldest first
  std::map<std::string, size_t> of_network_;
  Clock::time_point accept_after_ = Clock::time_point::min();  // delay after running out of descriptors
};

}  // namespace cleave::comm
