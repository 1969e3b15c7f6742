// Where the ranks of a job meet: at which of its addresses rank 0 listens, and what the others ask for there.
#pragma once
#include "comm/rendezvous/rendezvous.h"
#include "comm/rendezvous/secret.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// MASTER_ADDR as ranks use it.
struct MeetingPoint {
  std::string host;     // where the others call rank 0
  std::string address;  // on which it listens, numeric; empty: on all, because other hosts may know it by any
  bool on_one_host = false;  // nobody else can call
};

// "localhost" and addresses of the loopback are on one host, whose addresses other than that are left alone.
MeetingPoint meeting_point(const std::string& master_addr);

// Where a rank calls rank 0, in order: at the launcher's own port, then at MASTER_PORT or the ports near an
// agent's.
std::vector<int> ports_to_call(const RankInfo& info);

// Listens on a port at the meeting point; 0: a free one. Invalid, with errno.
Socket listen_at(const MeetingPoint& point, int port);
// The socket that this process inherited as `fd`, which its children do not; invalid unless it listens on the
// TCP port.
Socket inherited_listener(int fd, int port);

// Rank 0's side.
struct MeetingPlace {
  Socket listener;
  std::string call;  // the address at which rank 0 itself calls it
  SecretDoor door;   // of a job on one host that was given no secret
};
// Takes the launcher's socket, or waits for a port that is in use. Error(usage), which names who has it.
MeetingPlace meeting_place(const RankInfo& info, const ConnectOptions& options);

}  // namespace cleave::comm
