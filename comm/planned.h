// Communicator of a planned rank: checks and counts calls like every transport, but moves nothing. Real code
// that runs over it reveals its messages and their order without other ranks.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/post.h"

namespace cleave::comm {

// A group as one of its ranks sees it. `path` is the sequence of splits that made it: equal on all its ranks,
// and unique to the group.
struct PlannedGroup {
  std::string path;
  int rank = 0, size = 1;
};
// Returns the bytes of the call's result that come from other ranks, or from the sum over ranks.
int64_t received_bytes(const PlannedGroup& group, const Post& post);

// Called for each call, in order of the rank's host thread.
using CallTrace = std::function<void(const PlannedGroup& group, const Post& post)>;

std::unique_ptr<Communicator> planned_communicator(int rank, int size, CallTrace trace = {});

}  // namespace cleave::comm
