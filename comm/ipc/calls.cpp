#include "comm/ipc/calls.h"

#include <fmt/format.h>

#include <algorithm>

namespace cleave::comm {

std::string disagreement(const IpcCalls& mine, const IpcCalls& theirs, int my_rank, int their_rank) {
  const uint64_t last = std::min(mine.made(), theirs.made());
  for (const uint64_t n : {last > 1 ? last - 1 : last, last}) {
    const std::optional<Post> a = mine.call(n), b = theirs.call(n);
    if (a && b && !(*a == *b))
      return fmt::format(
          "ranks make different calls: call {} on the GPUs is {} on rank {}, and {} on rank {}", n,
          describe(*a), my_rank, describe(*b), their_rank);
  }
  return {};
}

}  // namespace cleave::comm
