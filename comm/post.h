// Description of a rank's current call: enough to detect disagreement of ranks before data moves, and to
// report a missed deadline.
#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace cleave::comm {

// Plain value; also stored in memory shared by processes of the same build.
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

// A waiting rank and its call. `ranks` are the group's members as world ranks.
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
// Report of a missed deadline; `present` by group rank.
std::string deadline_report(const Waiting& waiting, const std::vector<bool>& present,
                            std::chrono::milliseconds timeout);
// Report of two ranks in different calls.
std::string mismatch_report(const Waiting& waiting, int other_rank, const Post& other);

}  // namespace cleave::comm
