// Set-up of a ParameterStore: units, passes, and the memory that they need.
#include <algorithm>

#include "zero/store_parts.h"

namespace cleave {
namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

int ParameterStore::add_unit(UnitSpec spec, const ZeroPlan& plan) {
  if (!units_.empty()) {
    const ZeroPlan& first = units_[0]->plan;
    CHECK(plan.reduce_each_micro == first.reduce_each_micro &&
              plan.reduce_each_step == first.reduce_each_step &&
              plan.reduce_replicas == first.reduce_replicas && plan.home.gradients == first.home.gradients,
          "unit {}: all units of a store reduce their gradients over the same groups to the same home",
          spec.name);
  }
  auto unit = std::make_unique<Unit>(
      Unit{.layout = FlatLayout(std::move(spec), plan.optimizer_shards()), .plan = plan});
  const FlatLayout& layout = unit->layout;
  if (plan.home.parameters == MemoryKind::disk)
    unit->on_disk = disk_.add(unit->shard_numel());
  else
    unit->weights = memory_.allocate(plan.home.parameters, Category::weights, options_.weights,
                                     {unit->shard_numel()}, layout.name());
  const bool trains = options_.trains && unit->trains();
  unit->gradients = memory_.allocate(plan.home.gradients, Category::gradients, options_.gradients,
                                     {trains ? layout.numel() / plan.gradient_shards() : 0}, layout.name());
  unit->written = std::make_unique<bool[]>(size_t(layout.params()));
  units_.push_back(std::move(unit));
  return units() - 1;
}

int ParameterStore::add_pass(std::vector<Visit> visits) {
  auto pass = std::make_unique<Pass>();
  pass->visits = std::move(visits);
  pass->last_backward.assign(units_.size(), -1);
  for (int v = 0; v < int(pass->visits.size()); ++v)
    if (pass->visits[size_t(v)].backward) {
      int64_t numel = 0;
      for (int u : pass->visits[size_t(v)].units) {
        if (layout(u).frozen()) continue;
        pass->last_backward[size_t(u)] = v;
        numel += round_up(layout(u).numel(), 64);
      }
      contribution_numel_ = std::max(contribution_numel_, numel);
    }
  for (int v = 0; v < int(pass->visits.size()); ++v)
    for (int u : pass->visits[size_t(v)].units)
      if (pass->last_backward[size_t(u)] == v) pass->completes.push_back(u);
  plan_gathers(*pass);
  plan_buckets(*pass);
  std::vector<int> on_disk;
  for (const Instance& i : pass->gathers)
    if (const int shard = units_[size_t(i.unit)]->on_disk; shard >= 0) on_disk.push_back(shard);
  disk_.add_pass(std::move(on_disk));
  passes_.push_back(std::move(pass));
  return int(passes_.size()) - 1;
}

// A unit that is used in neighbouring visits (the last layer's forward and backward) is gathered once.
void ParameterStore::plan_gathers(Pass& pass) {
  for (int v = 0; v < int(pass.visits.size()); ++v) {
    if (!pass.visits[size_t(v)].parameters) continue;
    for (int u : pass.visits[size_t(v)].units) {
      if (!units_[size_t(u)]->plan.gathers()) continue;
      if (Instance* before = v > 0 ? pass.gather_of(u, v - 1) : nullptr) {
        before->last_use = before->lifetime.last = v;
        continue;
      }
      int first = std::max(0, v - options_.prefetch_visits);
      while (first < v && pass.gathered_at(first) + layout(u).numel() > options_.live_numel) ++first;
      pass.gathers.push_back({u, {first, v, units_[size_t(u)]->layout.numel()}, v, v, 0, {}});
    }
  }
  std::vector<Lifetime> lifetimes;
  for (const Instance& i : pass.gathers) lifetimes.push_back(i.lifetime);
  const RegionPlan plan = plan_regions(lifetimes);
  for (size_t i = 0; i < plan.offsets.size(); ++i) pass.gathers[i].offset = plan.offsets[i];
  pass.gathered_numel = plan.numel;
}

// A bucket lives from the first visit that writes it until its reduction, which may end one visit later.
void ParameterStore::plan_buckets(Pass& pass) {
  std::vector<Lifetime> lifetimes;
  for (int u = 0; u < units(); ++u) {
    const int last = pass.last_backward[size_t(u)];
    if (last < 0 || !units_[size_t(u)]->plan.buckets()) continue;
    int first = last;
    for (int v = last; v >= 0; --v)
      if (pass.visits[size_t(v)].backward && contains(pass.visits[size_t(v)].units, u)) first = v;
    const Lifetime life{first, last + (options_.overlap ? 1 : 0), units_[size_t(u)]->layout.numel()};
    pass.buckets.push_back({u, life, first, last, 0, {}});
    lifetimes.push_back(life);
  }
  const RegionPlan plan = plan_regions(lifetimes);
  for (size_t i = 0; i < plan.offsets.size(); ++i) pass.buckets[i].offset = plan.offsets[i];
  pass.bucket_numel = plan.numel;
}

void ParameterStore::commit() {
  int64_t gathered = 0, bucket = 0, landing = 0, wire = 0;
  for (const auto& pass : passes_) {
    gathered = std::max(gathered, pass->gathered_numel);
    bucket = std::max(bucket, pass->bucket_numel);
  }
  for (const auto& unit : units_) {
    const bool adds = unit->plan.reduce_each_micro->size() > 1;
    if (adds && !homes_.reaches(gradient_home()))
      landing = std::max(landing, unit->gradients.tensor().numel());
    const bool reduces_later =
        unit->plan.reduce_each_step->size() > 1 || unit->plan.reduce_replicas->size() > 1;
    if (unit->trains() && reduces_later && options_.wire != options_.gradients)
      wire = std::max(wire, unit->layout.numel());
  }
  const auto device = MemoryKind::device;
  gathered_ = memory_.allocate(device, Category::gathered, options_.weights, {gathered}, "gathered layers");
  buckets_ = memory_.allocate(device, Category::buckets, bucket_type(), {bucket}, "gradient buckets");
  landing_ = memory_.allocate(MemoryKind::pinned, Category::staging, bucket_type(), {landing},
                              "reduced gradient on its way home");
  wire_ =
      memory_.allocate(gradient_home(), Category::buckets, options_.wire, {wire}, "gradients on the wire");
  disk_.commit(memory_, options_.disk, options_.weights);
  if (!options_.exact()) return;
  contributions_ = memory_.allocate(device, Category::buckets, DType::fp32, {contribution_numel_},
                                    "gradients before rounding");
  overflows_ = memory_.allocate(device, Category::buckets, DType::int64, {1}, "overflows");
}

void ParameterStore::show_in(Trace& trace) {
  trace_ = &trace;
  trace.name(comm_, "weights from home", "gather"), trace.name(comm_, "gradients home", "gradient");
  disk_.show_in(trace);
}

MemoryKind ParameterStore::gradient_home() const {
  return units_.empty() ? MemoryKind::device : units_[0]->plan.home.gradients;
}

// What a rank alone puts into a bucket does not travel.
DType ParameterStore::bucket_type() const {
  const bool travels = !units_.empty() && units_[0]->plan.reduce_each_micro->size() > 1;
  return travels ? options_.wire : options_.gradients;
}

}  // namespace cleave
