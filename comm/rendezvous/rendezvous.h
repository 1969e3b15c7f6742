// Rendezvous of a job's ranks. Rank 0 serves a small store at the master address; every rank sends a hello
// with the job's id and attempt, proves the token, and learns where the others run. This decides the
// transport. Connections stay open, so the death of a rank ends the waits of all others at once.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/rendezvous/socket.h"

namespace cleave::comm {

// This process's place in the job; see discovery.h for its sources.
struct RankInfo {
  int rank = 0, world = 1;
  int local_rank = 0, local_size = 1;  // among the ranks of this host
  int node_rank = 0, nodes = 1;
  std::string master_addr = loopback();
  int master_port = 29500;
  bool port_is_taken = false;  // a launcher's agent listens there: use another port near it
  int meeting_port = 0;        // at the same address; the launcher already listens on it for rank 0
  int meeting_fd = -1;         // rank 0: inherited socket of meeting_port
  std::string job_id = {};     // empty: unknown, matches any
  int attempt = 0;
  std::string token = {};
  std::string launched_by = "no launcher: a single rank";
};

enum class TransportChoice { automatic, shm, gloo };

struct ConnectOptions {
  TransportChoice transport = TransportChoice::automatic;
  CommOptions comm = {};
  std::chrono::milliseconds rendezvous_timeout{300'000};
  std::chrono::milliseconds port_timeout{20'000};  // time that rank 0 waits for a port in use
  std::chrono::milliseconds report_every{15'000};
  // Rank 0 passes "waiting for ranks 3, 7 (6 of 8 are here)"; a rank that cannot reach it passes the reason.
  std::function<void(const std::string&)> on_wait = {};
  // Returns true when this attempt cannot succeed any more, because another one has begun; the wait for the
  // other ranks then ends with Error(rank_lost). Called often.
  std::function<bool()> outdated = {};
  // Called once, on any thread, when this rank learns that the job lost a rank: at a missed deadline, after
  // calls that differ, or when another rank reports it. Waits of this process have not ended yet.
  std::function<void(const std::string& reason)> on_loss = {};
};

class World {
 public:
  virtual ~World() = default;  // calls leave() if needed; during stack unwinding, only disconnects

  virtual Communicator& communicator() = 0;
  // The rank, with local rank and size derived from the real hosts.
  virtual const RankInfo& info() const = 0;
  // For the start-up output: "shared memory, 2 ranks on this host".
  virtual const std::string& transport() const = 0;
  // Tells all ranks why this rank ends; their waits end with this reason. `explained`: the reason is
  // complete, such as a missing file, so the other ranks do not call ConnectOptions::on_loss.
  virtual void failed(const std::string& reason, bool explained = false) = 0;
  // Announces a clean exit; rank 0 waits for all ranks. Communicators must not be used afterwards.
  virtual void leave() = 0;
};

// Throws Error(usage) for a wrong setup (another world size, a duplicate rank, a port in use), and
// Error(rank_lost) if ranks are missing at the deadline.
std::unique_ptr<World> connect(const RankInfo& info, const ConnectOptions& options = {});

// Parses "auto", "shm" or "gloo"; otherwise throws Error(usage).
TransportChoice parse_transport(std::string_view text);

}  // namespace cleave::comm
