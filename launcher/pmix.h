// Shares a secret between ranks that Open MPI's mpirun or `srun --mpi=pmix` started, over PMIx, whose library
// is loaded at run time.
#pragma once
#include <string>

#include "comm/rendezvous/socket.h"
#include "launcher/discovery.h"

namespace cleave::launcher {

// As secret_by_pmi() (launcher/pmi.h), which calls it. Empty if the variables name no server
// (PMIX_NAMESPACE); empty, with `why` set, if the library is missing or fails, or the other ranks do not come
// before the deadline. PMIx counts its users, so the process may use MPI.
std::string secret_by_pmix(const Environment& env, comm::Clock::time_point deadline, std::string& why,
                           const std::string& library = "libpmix.so.2");

}  // namespace cleave::launcher
