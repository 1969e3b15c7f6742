// Memory of a GPU that NCCL takes for its groups, outside of the memory plan.
#pragma once
#include <cstdint>

#include "core/mesh_shape.h"

namespace cleave::comm {

// Returns the bytes for a group of `ranks`; 0 for groups of which only the hosts exchange messages. Not a
// formula of NCCL's, whose channels depend on the machine, but measurements and public reports, rounded up:
// a communicator took 730 MiB (two ranks on an H200, 2.28.9) and 544 to 688 MiB (A100,
// NVIDIA/nccl#964), a message channel 45 MiB (H200), and a rank of an all-to-all 470 MiB for each other one
// (8 H100, NVIDIA/nccl#1685).
inline int64_t nccl_reserve(const RankGroup& group, int ranks) {
  constexpr int64_t kMiB = int64_t{1} << 20, kCommunicator = 768 * kMiB, kChannel = 64 * kMiB,
                    kPair = 512 * kMiB;
  if (ranks == 1) return 0;
  switch (group.purpose) {
    case RankGroup::Purpose::activations:
    case RankGroup::Purpose::gradients:
      return 2 * kChannel;  // to one neighbor and from the other
    case RankGroup::Purpose::rounds:
      return 0;
    default:
      break;
  }
  if (group.purpose == RankGroup::Purpose::axis && (group.axis == Axis::world || group.axis == Axis::pipe))
    return 0;
  return kCommunicator + (group.axis == Axis::sequence ? (ranks - 1) * kPair : 0);
}

}  // namespace cleave::comm
