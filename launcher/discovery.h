// Derives this process's place in its job from variables of launchers. A pure function of the environment, so
// that every launcher can be tested without it. Contradictions are errors that name the variables; the result
// is never a guess that this is rank 0 of 1.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/rendezvous.h"

namespace cleave::launcher {

using Environment = std::map<std::string, std::string>;

Environment environment_of_process();

// Options of the command line; they override everything else.
struct RankOverrides {
  std::optional<int> rank = {}, world = {};
  std::optional<std::string> master = {};  // "host" or "host:port"
};

struct Discovery {
  comm::RankInfo info;                // launched_by names the deciding rule and its variables
  std::vector<std::string> warnings;  // for the user
};

// In order: the command line, the complete torch set (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
// MASTER_PORT), Open MPI (on Azure ML, SageMaker or alone), Hydra and PALS, MVAPICH2, a SLURM step,
// TF_CONFIG, one process per pod, SageMaker's hosts, a single rank. Throws Error(usage) for contradictions
// and incomplete sets.
Discovery discover_ranks(const Environment& env, const RankOverrides& overrides = {});

}  // namespace cleave::launcher
