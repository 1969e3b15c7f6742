// Ports of a job that the launcher on rank 0's host takes before it starts ranks.
#pragma once
#include "comm/rendezvous/socket.h"
#include "launcher/launch_plan.h"

namespace cleave::launcher {

// On one host, ranks meet at a port of the launcher's choice; on several hosts, at MASTER_PORT. The launcher
// listens at that port, so it is never free before rank 0 has it. MASTER_PORT does not listen for a script,
// which may use it for torch.distributed.
struct RankPorts {
  comm::Socket meeting;  // listens until rank 0 inherits it; invalid if rank 0 listens itself
  int meeting_port = 0;
  comm::Socket reserved;  // MASTER_PORT, bound for the duration of the job
  int master_port = 0;
};
// `meet`: the processes are ranks that meet. Throws Error(usage) with the owner of a port in use.
RankPorts take_ports(const NodeStart& node, bool meet);

}  // namespace cleave::launcher
