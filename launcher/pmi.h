// Shares a secret between ranks that mpiexec, mpirun or srun started, over each rank's connection to its
// launcher: PMI-1, the key-value exchange between processes of a job, or else PMIx (launcher/pmix.h).
#pragma once
#include <string>

#include "comm/rendezvous/socket.h"
#include "launcher/discovery.h"

namespace cleave::launcher {

// Rank 0 generates a secret and the others read it. Collective over all processes of the launcher. Ends the
// connection of PMI-1, so that process must not use MPI. Empty if the variables name no connection (PMI_FD,
// PMIX_NAMESPACE); empty, with `why` set, if the launcher gives no valid answer before the deadline.
std::string secret_by_pmi(const Environment& env, comm::Clock::time_point deadline, std::string& why);

}  // namespace cleave::launcher
