#include "app/run/many_calls.h"

#include <fmt/core.h>

#include <cstdint>

namespace cleave::app {

std::vector<std::string> warnings_of_many_calls(const config::ZeroConfig& zero, const plan::RankPlan& rank) {
  constexpr int64_t kMany = 10'000;
  constexpr int64_t kSmall = 1'000'000;  // elements; many calls of larger sizes have other reasons
  struct Key {
    const char* name;
    int64_t size, calls;
  };
  std::vector<std::string> warnings;
  for (const Key& key : {Key{"reduce_bucket_size", zero.reduce_bucket_size, rank.reductions},
                         Key{"allgather_bucket_size", zero.allgather_bucket_size, rank.gathers},
                         Key{"sub_group_size", zero.sub_group_size, rank.update.disk_tiles}})
    if (key.size < kSmall && key.calls > kMany)
      warnings.push_back(
          fmt::format("zero_optimization.{}: too small (got {}, which makes {} calls per step, each with its "
                      "own latency); leave the key out, or give a size of some millions",
                      key.name, key.size, key.calls));
  return warnings;
}

}  // namespace cleave::app
