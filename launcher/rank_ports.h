// The ports of a job that the launcher on rank 0's host takes before it starts ranks.
#pragma once
#include "comm/rendezvous/socket.h"
#include "launcher/launch_plan.h"

namespace cleave::launcher {

// On one host ranks meet at a port of the launcher's choice, on several hosts at MASTER_PORT. The launcher
// listens there, so that the port is never free before rank 0 has it. But MASTER_PORT must not listen for a
// script, which may use it for torch.distributed.
struct RankPorts {
  comm::Socket meeting;  // listens until rank 0 inherits it; invalid if rank 0 listens itself
  int meeting_port = 0;
  comm::Socket reserved;  // MASTER_PORT, bound as long as the job runs
  int master_port = 0;
};
// meet: the processes are ranks that meet. Error(usage) names who has a port.
RankPorts take_ports(const NodeStart& node, bool meet);

}  // namespace cleave::launcher
