// A secret for ranks that mpiexec or srun started, over the connection that each has to its launcher: PMI-1,
// with which processes of a job share keys and values.
#pragma once
#include <string>

#include "comm/rendezvous/socket.h"
#include "launcher/discovery.h"

namespace cleave::launcher {

// Rank 0 makes a secret and the others read it. Collective over all processes that the launcher started; it
// ends the connection, so the process must use no MPI. Empty if the variables name no connection (PMI_FD);
// empty, and why, if the launcher does not answer as it should before the deadline.
std::string secret_by_pmi(const Environment& env, comm::Clock::time_point deadline, std::string& why);

}  // namespace cleave::launcher
