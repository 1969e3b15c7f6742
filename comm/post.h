// What a rank says about the call it is in: enough to see that ranks disagree before data moves, and to
// report a missed deadline in words.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace cleave::comm {

// A plain value; also lives in shared memory between processes of the same build.
struct Post {
  Collective op{};
  DType dtype{};
  int32_t peer = -1;  // root of a broadcast, other end of a send or recv
  int64_t numel = 0;
  Reduction by = Reduction::sum;
  bool operator==(const Post&) const = default;
};

// "all_reduce of 1000 fp32", "all_reduce by max of 7 fp32", "broadcast of 3 bf16 from rank 1", "barrier"
std::string describe(const Post& post);

// Who waits, in what. `ranks` are the group's members as ranks of the world.
struct Waiting {
  const std::string& group;
  const std::vector<int>& ranks;
  int rank;
  uint64_t number;  // of the call within the group
  std::string what;
  Post post;
};

// "all_reduce of 1000 fp32 (gradients of h.3), call 12 of group 'data'"
std::string describe(const Waiting& waiting);
// The report of a missed deadline; `present` by group rank.
std::string deadline_report(const Waiting& waiting, const std::vector<bool>& present,
                            std::chrono::milliseconds timeout);
// The report of two ranks that are in different calls.
std::string mismatch_report(const Waiting& waiting, int other_rank, const Post& other);

}  // namespace cleave::comm
