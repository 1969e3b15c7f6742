// Launchers of the MPI kind: they identify a process, but rarely say where rank 0 is.
#pragma once
#include "launcher/variables.h"

namespace cleave::launcher {

// Open MPI's mpirun, alone, on Azure ML or on SageMaker.
std::optional<comm::RankInfo> by_open_mpi(const Variables& v);
// MPICH, Intel MPI, and PALS.
std::optional<comm::RankInfo> by_hydra(const Variables& v);
std::optional<comm::RankInfo> by_mvapich(const Variables& v);

}  // namespace cleave::launcher
