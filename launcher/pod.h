// Variables of Kubernetes operators that start one process per pod: RANK, WORLD_SIZE and MASTER_* of
// Kubeflow's PyTorchJob and its likes, and PET_* of Kubeflow Trainer's TrainJob, which sets only torchrun's
// options.
#pragma once
#include <array>
#include <optional>
#include <string>

#include "launcher/variables.h"

namespace cleave::launcher {

struct Pod {
  int index = 0;
  int world = 1;  // pods, or in a PyTorchJob perhaps ranks
  std::string master_addr;
  int master_port = 0;
  std::string set_by;
};

inline std::optional<Pod> pod_of(const Variables& v) {
  struct Names {
    const char *index, *world, *address, *port;
  };
  constexpr Names kJob{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
      kTrainJob{"PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT"};
  const auto complete = [&](const Names& n) {
    return v.missing({n.index, n.world, n.address, n.port}).empty();
  };
  const bool job = complete(kJob);
  // "1:4" is the range of an elastic torchrun, which alone knows the number of pods.
  const bool train_job = !job && complete(kTrainJob) && v.text("PET_NNODES").find(':') == std::string::npos;
  if (!job && !train_job) return {};
  const Names& names = job ? kJob : kTrainJob;
  return Pod{v.number(names.index), v.number(names.world), v.text(names.address), v.number(names.port),
             train_job             ? "Kubeflow TrainJob"
             : v.has("PET_NNODES") ? "Kubeflow PyTorchJob"
                                   : "one process per pod"};
}

}  // namespace cleave::launcher
