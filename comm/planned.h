// A rank that is only planned: its calls are checked and counted as on every transport, and nothing moves.
// Real code run over it tells what it would send, and in which order, without any other rank.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/post.h"

namespace cleave {

// Told of each call, in the order of the rank's host thread. `group` is the path of splits that made the
// group, the same text on all of its members and on no other group.
using CallTrace = std::function<void(const std::string& group, const Post& post)>;

std::unique_ptr<Communicator> planned_communicator(int rank, int size, CallTrace trace = {});

}  // namespace cleave
