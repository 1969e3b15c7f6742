// The sharding of each of a rank's units.
#pragma once
#include "core/param_spec.h"
#include "runtime/ranks.h"
#include "zero/sharding.h"

namespace cleave {

class ShardingRule {
 public:
  // Both outlive this.
  ShardingRule(const Settings& settings, const Ranks& ranks);

  // Asked for once a unit, in their order: up to offload_param.max_in_cpu elements of a rank's shards stay in
  // host memory though their home is the disk, those of the first units.
  Sharding operator()(const UnitSpec& unit);

 private:
  Sharding shared(const UnitSpec& unit) const;

  const Settings& settings_;
  const Ranks& ranks_;
  int64_t left_in_memory_;  // elements
};

}  // namespace cleave
