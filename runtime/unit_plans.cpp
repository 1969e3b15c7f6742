#include "runtime/unit_plans.h"

#include "zero/flat_layout.h"

namespace cleave {

UnitPlans::UnitPlans(const Settings& settings, const Ranks& ranks)
    : settings_(settings), ranks_(ranks), left_in_memory_(settings.config.zero.offload_param.max_in_cpu) {}

ZeroPlan UnitPlans::operator()(const UnitSpec& unit) {
  ZeroPlan plan = shared(unit);
  if (plan.home.parameters != MemoryKind::disk) return plan;
  const int64_t shard = FlatLayout(unit, plan.optimizer_shards()).numel() / plan.parameter_shards();
  if (shard > left_in_memory_) return plan;
  left_in_memory_ -= shard;
  plan.home.parameters = settings_.parameter_place.staging;
  return plan;
}

ZeroPlan UnitPlans::shared(const UnitSpec& unit) const {
  const ZeroConfig& zero = settings_.config.zero;
  Communicator &data = *ranks_.mesh().data, &self = ranks_.self();
  ZeroPlan plan = settings_.sharing == Sharing::by_stage ? plan_for_stage(zero.stage, data, self)
                  : settings_.sharing == Sharing::hybrid ? hybrid_plan(ranks_.near(), self)
                                                         : nested_plan(ranks_.near(), self);
  plan.check(data.size());
  plan.home = settings_.shard_home;
  int64_t numel = 0;
  for (const ParamSpec& p : unit.params) numel += p.numel();
  // A nested plan publishes across: it has no group to keep a unit whole with.
  const bool can = plan.gathers() && plan.gather_on_publish->size() == 1;
  const bool whole = can && numel < zero.stage3_param_persistence_threshold;
  return whole ? with_whole_parameters(plan, self) : plan;
}

}  // namespace cleave
