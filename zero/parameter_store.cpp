#include "zero/parameter_store.h"

#include <algorithm>

#include "core/mesh_shape.h"

namespace cleave::zero {

ParameterStore::ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm,
                               Stream& from_home)
    : options_(options),
      compute_(compute),
      comm_(comm),
      weights_(memory, options, compute, comm, from_home),
      gradients_(memory, options, compute, comm) {}

int ParameterStore::add_unit(UnitSpec spec, const Sharding& sharding) {
  units_.push_back({FlatLayout(std::move(spec), sharding.optimizer_shards(), options_.decays), sharding});
  weights_.add_unit(units_.back());
  gradients_.add_unit(units_.back());
  return units() - 1;
}

void ParameterStore::show_in(Trace& trace) { weights_.show_in(trace), gradients_.show_in(trace); }

void ParameterStore::wait_for_gradients() {
  synchronize_disk();  // throws disk errors in their own step; the writes are usually done by now
  compute_.wait(comm_.record());
  weights_.wait_for_fetches();
}

namespace {

// Returns the part of the unit's slice that only this rank counts among ranks with the same slice. Equals the
// shards over all data ranks at every stage, for any padding of the slice.
Range among_replicas(const StoredUnit& unit) {
  const int replicas = unit.sharding.reduce_replicas->size(), rank = unit.sharding.reduce_replicas->rank();
  const int64_t slice = unit.slice_numel(), used = unit.layout.used_numel();
  const int64_t most = std::max(unit.layout.shard_numel(unit.sharding.optimizer_shards() * replicas),
                                ceil_div(std::min(slice, used), replicas));
  const int64_t each = round_up(most, std::max(1, unit.layout.word()));
  return {std::min(slice, each * rank), std::min(slice, each * (rank + 1))};
}

}  // namespace

// Cuts over the replicas also, so that every stage adds the same pieces in the same order and the norm has
// the same bits. Along axes that divide the unit's slices no two ranks hold the same elements.
std::vector<Range> ParameterStore::counted(int index) const {
  const StoredUnit& unit = units_[size_t(index)];
  const Range mine = among_replicas(unit);
  const AxisSet behind = options_.behind.without(sharing_axes(unit.layout.cut_by()));
  if (behind.empty()) return {mine};
  std::vector<Range> out;
  for (const Range& cut : unit.layout.cut_by(behind)) {
    const Range here = intersect(mine, cut.shifted(-unit.slice().begin));
    out.push_back(here.empty() ? Range{} : here);
  }
  return out;
}

std::vector<comm::Communicator*> ParameterStore::groups() const {
  std::vector<comm::Communicator*> out;
  for (const StoredUnit& unit : units_)
    for (comm::Communicator* group :
         {unit.sharding.reduce_each_micro, unit.sharding.reduce_each_step, unit.sharding.reduce_replicas,
          unit.sharding.gather_on_publish, unit.sharding.gather_on_use})
      if (group->size() > 1 && std::find(out.begin(), out.end(), group) == out.end()) out.push_back(group);
  return out;
}

namespace {

bool same_groups(const Sharding& a, const Sharding& b) {
  return a.reduce_each_micro == b.reduce_each_micro && a.reduce_each_step == b.reduce_each_step &&
         a.reduce_replicas == b.reduce_replicas;
}

int ranks_of(const Sharding& sharding) {
  return sharding.optimizer_shards() * sharding.reduce_replicas->size();
}

}  // namespace

// Joins neighbors with the same groups, so a store with one group for all units makes one call per
// communicator.
void ParameterStore::sum_over_slices(Tensor partial_sums, std::span<const int64_t> ends,
                                     std::string_view what, bool replicas) {
  CHECK(int(ends.size()) == units(), "{}: sums of {} units, there are {}", what, ends.size(), units());
  if (units_.empty()) return;
  comm_.wait(compute_.record());
  const auto sum = [&](const Sharding& sharding, Range r) {
    if (r.empty()) return;
    for (comm::Communicator* c :
         {sharding.reduce_each_micro, sharding.reduce_each_step, sharding.reduce_replicas})
      if (c != sharding.reduce_replicas || replicas)
        c->all_reduce(partial_sums.slice(r), comm_, {.what = what});
  };
  const Sharding* widest = &units_[0].sharding;
  for (const StoredUnit& u : units_)
    if (ranks_of(u.sharding) > ranks_of(*widest)) widest = &u.sharding;
  Range run{0, 0};
  for (size_t u = 0; u < units_.size(); ++u) {
    run.end = ends[u];
    const bool last = u + 1 == units_.size();
    if (!last && same_groups(units_[u].sharding, units_[u + 1].sharding)) continue;
    if (last && same_groups(units_[u].sharding, *widest)) run.end = partial_sums.numel();
    sum(units_[u].sharding, run);
    run.begin = run.end;
  }
  sum(*widest, {run.begin, partial_sums.numel()});
  compute_.wait(comm_.record());
}

}  // namespace cleave::zero
