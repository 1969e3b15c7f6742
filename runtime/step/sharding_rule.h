// Sharding of each of a rank's units.
#pragma once
#include "core/param_spec.h"
#include "runtime/step/ranks.h"
#include "zero/sharding.h"

namespace cleave::runtime {

class ShardingRule {
 public:
  // Both arguments must outlive this object.
  ShardingRule(const Settings& settings, const Ranks& ranks);

  // Returns the sharding of a unit; call once per unit, in order. The first units keep up to
  // offload_param.max_in_cpu elements of a rank's shards in host memory although their home is the disk.
  zero::Sharding operator()(const UnitSpec& unit);

 private:
  zero::Sharding shared(const UnitSpec& unit) const;

  const Settings& settings_;
  const Ranks& ranks_;
  int64_t left_in_memory_;  // in elements
};

}  // namespace cleave::runtime
