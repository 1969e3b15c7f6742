// How the ranks of a job find each other. Rank 0 serves a small store at the master address; every rank says
// hello with the job's id and attempt, proves the token, and learns where the others run; that decides the
// transport.
// The connections stay open, so that the death of a rank ends the waits of all others at once.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// This process's place in the job; see discovery.h for where it comes from.
struct RankInfo {
  int rank = 0, world = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this host
  int node_rank = 0, nodes = 1;
  std::string master_addr = loopback();
  int master_port = 29500;
  bool port_is_taken = false;  // an agent of the launcher listens there: use another port near it
  int meeting_port = 0;        // at the same address, on which the launcher has listened for rank 0
  int meeting_fd = -1;         // rank 0's: that socket, which it inherited
  std::string job_id = {};     // empty: unknown, agrees with any
  int attempt = 0;
  std::string token = {};
  std::string launched_by = "no launcher: a single rank";
};

enum class TransportChoice { automatic, shm, gloo };

struct ConnectOptions {
  TransportChoice transport = TransportChoice::automatic;
  CommOptions comm = {};
  std::chrono::milliseconds rendezvous_timeout{300'000};
  std::chrono::milliseconds port_timeout{20'000};  // how long rank 0 waits for a port that is in use
  std::chrono::milliseconds report_every{15'000};
  std::function<void(const std::string&)> on_wait =
      {};  // from rank 0: "waiting for ranks 3, 7 (6 of 8 are here)"; from a rank that does not reach it: why
};

class World {
 public:
  virtual ~World() = default;  // leaves if leave() was not called; during an exception it just hangs up

  virtual Communicator& communicator() = 0;
  // The rank, with local rank and size as seen from where the ranks really run.
  virtual const RankInfo& info() const = 0;
  // For a start-up line: "shared memory, 2 ranks on this host".
  virtual const std::string& transport() const = 0;
  // Tells everybody why this rank ends; their waits end with this reason.
  virtual void failed(const std::string& reason) = 0;
  // Says goodbye; rank 0 waits until all have. Communicators must not be used any more.
  virtual void leave() = 0;
};

// Error(usage) if the job is wrongly set up (another world size, a rank twice, a port in use),
// Error(rank_lost) if ranks are missing at the deadline.
std::unique_ptr<World> connect(const RankInfo& info, const ConnectOptions& options = {});

// "auto", "shm" or "gloo"; Error(usage) otherwise.
TransportChoice parse_transport(std::string_view text);

}  // namespace cleave::comm
