// Meeting point of a job's ranks: the address on which rank 0 listens, and the ports that the others call.
#pragma once
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/secret.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// MASTER_ADDR as ranks use it.
struct MeetingPoint {
  std::string host;          // host on which the others call rank 0
  std::string address;       // numeric, for listening; empty: all, because other hosts may use any
  bool on_one_host = false;  // other hosts cannot call
};

// "localhost" and loopback addresses mean one host; its other addresses are not used.
MeetingPoint meeting_point(const std::string& master_addr);

// Ports at which a rank calls rank 0, in order: the launcher's port, then MASTER_PORT or the ports near an
// agent's.
std::vector<int> ports_to_call(const RankInfo& info);

// Listens on a port at the meeting point; 0: a free port. On failure, returns an invalid socket and sets
// errno.
Socket listen_at(const MeetingPoint& point, int port);
// Socket that this process inherited as `fd`; its children do not inherit it. Invalid unless it listens on
// the TCP port.
Socket inherited_listener(int fd, int port);

// Rank 0's side of the meeting.
struct MeetingPlace {
  Socket listener;
  std::string call;  // address at which rank 0 calls itself
  SecretDoor door;   // of a job on one host without a given secret
};
// Takes over the launcher's socket, or waits for a port that is in use. Throws Error(usage) with the port's
// owner.
MeetingPlace meeting_place(const RankInfo& info, const ConnectOptions& options);

}  // namespace cleave::comm
