#include "zero/parameter_store.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/exact.h"

namespace cleave {

struct ParameterStore::Unit {
  FlatLayout layout;
  ZeroPlan plan;
  Buffer weights;                   // numel / parameter_shards
  Buffer gradients;                 // numel / gradient_shards
  std::unique_ptr<bool[]> written;  // by parameter, of the full gradient being written
  bool reduced = false;             // the gradient shard holds a sum of this step
  bool begun = false;               // exact sums without buckets: the gradients hold something of this step

  bool gathers() const { return plan.gather_on_use->size() > 1; }
  bool buckets() const { return plan.reduce_each_micro->size() > 1; }
  int64_t slice_numel() const { return layout.numel() / plan.optimizer_shards(); }
};

// One stay of a unit in the block of gathered parameters, or of gradient buckets.
struct ParameterStore::Instance {
  int unit = 0;
  Lifetime lifetime;
  int first_use = 0, last_use = 0;
  int64_t offset = 0;
  Event ready;
};

struct ParameterStore::Pass {
  std::vector<Visit> visits;
  std::vector<Instance> gathers, buckets;
  std::vector<int> last_backward;  // by unit: the visit after which its gradient is complete, or -1
  int64_t gathered_numel = 0, bucket_numel = 0;

  Instance* gather_of(int unit, int visit) { return find(gathers, unit, visit); }
  Instance* bucket_of(int unit, int visit) { return find(buckets, unit, visit); }

 private:
  static Instance* find(std::vector<Instance>& list, int unit, int visit) {
    for (Instance& i : list)
      if (i.unit == unit && i.first_use <= visit && visit <= i.last_use) return &i;
    return nullptr;
  }
};

namespace {

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

Tensor view_of(const FlatLayout& layout, int param, Tensor full) {
  Shape shape;
  for (int64_t d : layout.param(param).shape) shape.dims[size_t(shape.rank++)] = d;
  return full.slice(layout.range(param)).view(shape);
}

}  // namespace

ParameterStore::ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
    : memory_(memory), options_(options), compute_(compute), comm_(comm) {}
ParameterStore::~ParameterStore() = default;

int ParameterStore::units() const { return int(units_.size()); }
const FlatLayout& ParameterStore::layout(int unit) const { return units_[size_t(unit)]->layout; }

int ParameterStore::add_unit(UnitSpec spec, const ZeroPlan& plan) {
  if (!units_.empty()) {
    const ZeroPlan& first = units_[0]->plan;
    CHECK(plan.reduce_each_micro == first.reduce_each_micro &&
              plan.reduce_each_step == first.reduce_each_step &&
              plan.reduce_replicas == first.reduce_replicas,
          "unit {}: all units of a store reduce their gradients over the same groups", spec.name);
  }
  FlatLayout layout(std::move(spec), plan.optimizer_shards());
  const int64_t n = layout.numel();
  const std::string name = layout.name();
  auto written = std::make_unique<bool[]>(size_t(layout.params()));
  units_.push_back(
      std::make_unique<Unit>(Unit{std::move(layout), plan,
                                  memory_.allocate(MemoryKind::device, Category::weights, options_.weights,
                                                   {n / plan.parameter_shards()}, name),
                                  memory_.allocate(MemoryKind::device, Category::gradients,
                                                   options_.gradients, {n / plan.gradient_shards()}, name),
                                  std::move(written), false, false}));
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
        pass->last_backward[size_t(u)] = v;
        numel += round_up(layout(u).numel(), 64);
      }
      contribution_numel_ = std::max(contribution_numel_, numel);
    }
  plan_gathers(*pass);
  plan_buckets(*pass);
  passes_.push_back(std::move(pass));
  return int(passes_.size()) - 1;
}

// A unit that is used in neighbouring visits (the last layer's forward and backward) is gathered once.
void ParameterStore::plan_gathers(Pass& pass) {
  for (int v = 0; v < int(pass.visits.size()); ++v) {
    if (!pass.visits[size_t(v)].parameters) continue;
    for (int u : pass.visits[size_t(v)].units) {
      if (!units_[size_t(u)]->gathers()) continue;
      if (Instance* before = v > 0 ? pass.gather_of(u, v - 1) : nullptr) {
        before->last_use = before->lifetime.last = v;
        continue;
      }
      const int first = std::max(0, v - options_.prefetch_visits);
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
    if (last < 0 || !units_[size_t(u)]->buckets()) continue;
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
  int64_t gathered = 0, bucket = 0, shard = 0, wire = 0;
  for (const auto& pass : passes_) {
    gathered = std::max(gathered, pass->gathered_numel);
    bucket = std::max(bucket, pass->bucket_numel);
  }
  for (const auto& unit : units_) {
    if (unit->buckets()) shard = std::max(shard, unit->gradients.tensor().numel());
    const bool reduces_later =
        unit->plan.reduce_each_step->size() > 1 || unit->plan.reduce_replicas->size() > 1;
    if (reduces_later && options_.wire != options_.gradients) wire = std::max(wire, unit->layout.numel());
  }
  const auto device = MemoryKind::device;
  gathered_ = memory_.allocate(device, Category::gathered, options_.weights, {gathered}, "gathered layers");
  buckets_ = memory_.allocate(device, Category::buckets, options_.wire, {bucket}, "gradient buckets");
  reduced_shard_ =
      memory_.allocate(device, Category::buckets, options_.wire, {shard}, "reduced gradient shard");
  wire_ = memory_.allocate(device, Category::buckets, options_.wire, {wire}, "gradients on the wire");
  if (!options_.exact()) return;
  contributions_ = memory_.allocate(device, Category::buckets, DType::fp32, {contribution_numel_},
                                    "gradients before rounding");
  overflows_ = memory_.allocate(device, Category::buckets, DType::int64, {1}, "overflows");
}

void ParameterStore::begin_step(double unscale) {
  if (options_.exact()) launch(Fill{.y = overflows_}, compute_);
  to_grid_ = std::ldexp(unscale, options_.grid);
  for (auto& unit : units_) {
    unit->reduced = unit->begun = false;
    std::fill_n(unit->written.get(), unit->layout.params(), false);
  }
}

void ParameterStore::begin_pass(int pass, bool last) {
  pass_ = passes_[size_t(pass)].get();
  last_ = last;
  // The buckets of the pass before are free once its last reductions are done.
  const Event before = reduced_.empty() ? Event() : reduced_.back();
  reduced_.assign(pass_->visits.size() + 1, Event());
  reduced_[0] = before;
}

std::vector<Tensor> ParameterStore::acquire(int visit) {
  for (Instance& i : pass_->gathers) {
    if (i.lifetime.first != visit) continue;
    Unit& unit = *units_[size_t(i.unit)];
    // The place was used by visits that ended before this one began; prefetched ones are still computing
    // elsewhere.
    comm_.wait(released_);
    const Tensor full = gathered_.tensor().slice({i.offset, i.offset + unit.layout.numel()});
    unit.plan.gather_on_use->all_gather(full, unit.weights, comm_,
                                        {.what = unit.layout.name(), .max_numel = options_.gather_numel});
    i.ready = comm_.record();
  }
  std::vector<Tensor> params;
  if (!pass_->visits[size_t(visit)].parameters) return params;
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    Tensor full = unit.weights;
    if (Instance* i = unit.gathers() ? pass_->gather_of(u, visit) : nullptr) {
      compute_.wait(i->ready);
      full = gathered_.tensor().slice({i->offset, i->offset + unit.layout.numel()});
    }
    for (int p = 0; p < unit.layout.params(); ++p) params.push_back(view_of(unit.layout, p, full));
  }
  return params;
}

std::vector<GradientSlot> ParameterStore::gradients(int visit) {
  // Buckets whose place this visit may reuse were reduced at least two visits ago (one, without overlap).
  compute_.wait(reduced_[size_t(std::max(0, visit - (options_.overlap ? 1 : 0)))]);
  std::vector<GradientSlot> slots;
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    Tensor full = unit.gradients;
    if (options_.exact()) {
      full = contribution(visit, u);
      std::fill_n(unit.written.get(), unit.layout.params(), false);
    } else if (Instance* i = unit.buckets() ? pass_->bucket_of(u, visit) : nullptr) {
      full = buckets_.tensor().slice({i->offset, i->offset + unit.layout.numel()});
      if (visit == i->first_use) std::fill_n(unit.written.get(), unit.layout.params(), false);
    }
    for (int p = 0; p < unit.layout.params(); ++p)
      slots.push_back({view_of(unit.layout, p, full), &unit.written[size_t(p)]});
  }
  return slots;
}

Tensor ParameterStore::contribution(int visit, int unit) const {
  int64_t at = 0;
  for (int u : pass_->visits[size_t(visit)].units) {
    const int64_t numel = layout(u).numel();
    if (u == unit) return contributions_.tensor().slice({at, at + numel});
    at += round_up(numel, 64);
  }
  fail(Exit::internal, "unit {} is not in visit {}", unit, visit);
}

void ParameterStore::round_contributions(int visit) {
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    const Tensor full = contribution(visit, u);
    clear_unwritten(unit, full);
    const Instance* bucket = unit.buckets() ? pass_->bucket_of(u, visit) : nullptr;
    const Tensor sum = bucket
                           ? buckets_.tensor().slice({bucket->offset, bucket->offset + unit.layout.numel()})
                           : unit.gradients.tensor();
    launch(RoundToGrid{.y = sum,
                       .bad = overflows_,
                       .x = full,
                       .factor = to_grid_,
                       .limit = options_.limit,
                       .accumulate = bucket ? visit != bucket->first_use : std::exchange(unit.begun, true)},
           compute_);
  }
}

void ParameterStore::finish(int visit) {
  if (options_.exact() && pass_->visits[size_t(visit)].backward) round_contributions(visit);
  released_ = compute_.record();
  // reduced_[v + 1]: everything reduced up to and including visit v.
  reduced_[size_t(visit) + 1] = reduced_[size_t(visit)];
  if (!pass_->visits[size_t(visit)].backward) return;
  bool any = false;
  for (int u : pass_->visits[size_t(visit)].units) {
    if (pass_->last_backward[size_t(u)] != visit) continue;
    const Instance* bucket = units_[size_t(u)]->buckets() ? pass_->bucket_of(u, visit) : nullptr;
    if (!bucket && !last_) continue;
    reduce(u, bucket);
    any = true;
  }
  if (any) reduced_[size_t(visit) + 1] = comm_.record();
}

// Parameters that no layer wrote, and the padding, have gradient zero.
void ParameterStore::clear_unwritten(Unit& unit, Tensor full) {
  for (int p = 0; p < unit.layout.params(); ++p)
    if (!unit.written[size_t(p)]) launch(Fill{.y = full.slice(unit.layout.range(p))}, compute_);
  if (unit.layout.used_numel() < unit.layout.numel())
    launch(Fill{.y = full.slice({unit.layout.used_numel(), unit.layout.numel()})}, compute_);
}

void ParameterStore::reduce(int index, const Instance* bucket) {
  Unit& unit = *units_[size_t(index)];
  const Call call{.what = unit.layout.name(), .max_numel = options_.reduce_numel};
  if (bucket) {
    const Tensor full = buckets_.tensor().slice({bucket->offset, bucket->offset + unit.layout.numel()});
    if (!options_.exact()) clear_unwritten(unit, full);
    comm_.wait(compute_.record());
    const Tensor sum = unit.gradients;
    const bool direct = !unit.reduced && options_.wire == options_.gradients;
    const Tensor shard = direct ? sum : reduced_shard_.tensor().slice({0, sum.numel()});
    unit.plan.reduce_each_micro->reduce_scatter(shard, full, comm_, call);
    if (!direct && !unit.reduced) launch(Cast{.y = sum, .x = shard}, comm_);
    if (!direct && unit.reduced && options_.exact()) launch(AddIntegers{.y = sum, .x = shard}, comm_);
    if (!direct && unit.reduced && !options_.exact()) launch(Axpy{.y = sum, .x = shard}, comm_);
    unit.reduced = true;
  } else {
    if (!options_.exact()) clear_unwritten(unit, unit.gradients);
    comm_.wait(compute_.record());
  }
  if (!last_) return;
  const bool later = unit.plan.reduce_each_step->size() > 1 || unit.plan.reduce_replicas->size() > 1;
  if (!later) return;
  Tensor full = unit.gradients;
  if (options_.wire != options_.gradients) {
    full = wire_.tensor().slice({0, full.numel()});
    launch(Cast{.y = full, .x = unit.gradients}, comm_);
  }
  const int64_t shard = div_exact(full.numel(), unit.plan.reduce_each_step->size());
  const Range mine = Range{0, shard}.shifted(unit.plan.reduce_each_step->rank() * shard);
  unit.plan.reduce_each_step->reduce_scatter(full.slice(mine), full, comm_, call);
  unit.plan.reduce_replicas->all_reduce(full.slice(mine), comm_, call);
  if (options_.wire != options_.gradients)
    launch(Cast{.y = unit.gradients.tensor().slice(mine), .x = full.slice(mine)}, comm_);
}

void ParameterStore::wait_for_gradients() { compute_.wait(comm_.record()); }

Range ParameterStore::slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const ZeroPlan& p = unit.plan;
  const int64_t at = p.reduce_each_micro->rank() * p.reduce_each_step->size() + p.reduce_each_step->rank();
  return Range{0, unit.slice_numel()}.shifted(at * unit.slice_numel());
}

Tensor ParameterStore::weights_slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const int64_t n = unit.slice_numel();
  return unit.weights.tensor().slice(Range{0, n}.shifted(unit.plan.gather_on_publish->rank() * n));
}

Tensor ParameterStore::gradient_slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const int64_t n = unit.slice_numel();
  return unit.gradients.tensor().slice(Range{0, n}.shifted(unit.plan.reduce_each_step->rank() * n));
}

// Cut over the replicas as well, so that every stage adds the same pieces in the same order and the norm has
// the same bits: at every stage the pieces are those of the data ranks.
Range ParameterStore::norm_range(int index) const {
  const Unit& unit = *units_[size_t(index)];
  return part(unit.slice_numel(), unit.plan.reduce_replicas->size(), unit.plan.reduce_replicas->rank());
}

void ParameterStore::publish(int index) {
  Unit& unit = *units_[size_t(index)];
  if (unit.plan.gather_on_publish->size() == 1) return;
  comm_.wait(compute_.record());
  unit.plan.gather_on_publish->all_gather(unit.weights, weights_slice(index), comm_,
                                          {.what = unit.layout.name(), .max_numel = options_.gather_numel});
}

void ParameterStore::wait_for_weights() {
  compute_.wait(comm_.record());
  released_ = compute_.record();  // gathers of the next pass must see the updated shards
}

void ParameterStore::sum_over_slices(Tensor partial_sums) {
  if (units_.empty()) return;
  comm_.wait(compute_.record());
  const ZeroPlan& plan = units_[0]->plan;
  for (Communicator* c : {plan.reduce_each_micro, plan.reduce_each_step, plan.reduce_replicas})
    c->all_reduce(partial_sums, comm_, {.what = "squared gradient norm"});
  compute_.wait(comm_.record());
}

}  // namespace cleave
