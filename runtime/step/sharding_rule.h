// The sharding of each of a rank's units.
#pragma once
#include "core/param_spec.h"
#include "runtime/step/ranks.h"
#include "zero/sharding.h"

namespace cleave::runtime {

class ShardingRule {
 public:
  // Both outlive this.
  ShardingRule(const Settings& settings, const Ranks& ranks);

  // Asked for once a unit, in their order: up to offload_param.max_in_cpu elements of a rank's shards stay in
  // host memory though their home is the disk, those of the first units.
  zero::Sharding operator()(const UnitSpec& unit);

 private:
  zero::Sharding shared(const UnitSpec& unit) const;

  const Settings& settings_;
  const Ranks& ranks_;
  int64_t left_in_memory_;  // elements
};

}  // namespace cleave::runtime
