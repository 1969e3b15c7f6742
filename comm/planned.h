// A rank that is only planned: its calls are checked and counted as on every transport, and nothing moves.
// Real code run over it tells what it would send, and in which order, without any other rank.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/post.h"

namespace cleave::comm {

// A group as one of its ranks sees it. The path of splits that made it is the same text on all of its ranks
// and on no other group.
struct PlannedGroup {
  std::string path;
  int rank = 0, size = 1;
};
// Told of each call, in the order of the rank's host thread.
using CallTrace = std::function<void(const PlannedGroup& group, const Post& post)>;

std::unique_ptr<Communicator> planned_communicator(int rank, int size, CallTrace trace = {});

}  // namespace cleave::comm
