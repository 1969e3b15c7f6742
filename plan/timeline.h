// Steps of a job on a timeline: the work that one rank of each pipeline stage enqueues, replayed with a
// device's rates. Streams run at the same time, events order them, and messages between stages wait for each
// other, so the result counts which message computation hides.
#pragma once
#include <span>
#include <vector>

#include "device/work_log.h"

namespace cleave::plan {

// Enqueued work of a rank.
struct RankWork {
  struct Group {
    std::string path;        // equal on all its ranks, and unique to the group
    int size = 1, here = 1;  // members, and those on the node of this rank
    int rank = 0;            // this rank in the group
  };
  std::vector<WorkEntry> entries;
  std::vector<Group> groups;
  size_t first_step = 0;  // entries before this index are of the first step, the others of the second
};

// Rates in bytes and FLOPs per second.
struct ReplayRates {
  double flops = 0, memory = 0, node_link = 0, network = 0;
  bool messages = true;  // false: messages take no time
};

struct Replayed {
  double step = 0;      // seconds from the end of the first step to the end of the second
  double compute = 0;   // launches of the second step on the busiest rank
  double messages = 0;  // collectives and sends of the second step on the rank with most
  double launched = 0;  // FLOPs of the second step on all these ranks, without repeated ones
};

// Replays one rank of each pipeline stage, in order of the stages. Launches with FLOPs take their time at the
// rate of whole steps, which includes the launches without, unless these are repeated. Ranks of a group that
// are not replayed call at the same time as the one that is.
Replayed replay(std::span<const RankWork* const> stages, const ReplayRates& rates);

}  // namespace cleave::plan
