#include "runtime/step/sharding_rule.h"

#include "zero/flat_layout.h"

namespace cleave::runtime {

ShardingRule::ShardingRule(const Settings& settings, const Ranks& ranks)
    : settings_(settings), ranks_(ranks), left_in_memory_(settings.left_in_memory) {}

zero::Sharding ShardingRule::operator()(const UnitSpec& unit) {
  zero::Sharding sharding = shared(unit);
  if (sharding.home.parameters != MemoryKind::disk) return sharding;
  const int64_t shard =
      zero::FlatLayout(unit, sharding.optimizer_shards()).numel() / sharding.parameter_shards();
  if (shard > left_in_memory_) return sharding;
  left_in_memory_ -= shard;
  sharding.home.parameters = settings_.parameter_disk.staging;
  return sharding;
}

zero::Sharding ShardingRule::shared(const UnitSpec& unit) const {
  comm::Communicator &data = ranks_.sharers(unit), &self = ranks_.self();
  require(&data == ranks_.mesh().data || settings_.sharding == ShardingKind::by_stage, Exit::usage,
          "unit {} is split by an axis inside the data axis and has no near ranks; remove mics_shard_size "
          "and zero_hpz_partition_size",
          unit.name);
  zero::Sharding sharding =
      settings_.sharding == ShardingKind::by_stage ? zero::sharding_of_stage(settings_.stage, data, self)
      : settings_.sharding == ShardingKind::hybrid ? zero::hybrid_sharding(ranks_.near(), self)
                                                   : zero::nested_sharding(ranks_.near(), self);
  sharding.check(data.size());
  sharding.home = settings_.shard_home;
  int64_t numel = 0;
  for (const ParamSpec& p : unit.params) numel += p.numel();
  // A nested sharding publishes across groups, so it has no group to keep a unit whole with.
  const bool can = sharding.gathers() && sharding.gather_on_publish->size() == 1;
  require(
      can || !unit.whole || !sharding.gathers(), Exit::usage,
      "zero_optimization.zero_hpz_partition_size: the unit {} must stay whole on every rank; remove the key",
      unit.name);
  const bool whole = can && (unit.whole || numel < settings_.whole_below);
  return whole ? zero::with_whole_parameters(sharding, self) : sharding;
}

}  // namespace cleave::runtime
