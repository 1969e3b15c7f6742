#include "zero/gradient_buckets.h"

#include <algorithm>
#include <cmath>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/exact.h"

namespace cleave::zero {

GradientBuckets::GradientBuckets(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
    : memory_(memory), options_(options), compute_(compute), comm_(comm), homes_(memory) {}

void GradientBuckets::add_unit(const StoredUnit& unit) {
  CHECK(units_.empty() || unit.sharding.home.gradients == home(),
        "unit {}: its gradients live in {} memory, those of the units before it in {}; a store has one home "
        "of gradients",
        unit.name(), name_of(unit.sharding.home.gradients), name_of(home()));
  Unit& u = units_.emplace_back(Unit{.of = &unit});
  const bool trains = options_.trains && u.trains();
  u.gradients =
      memory_.allocate(unit.sharding.home.gradients, Category::gradients, options_.gradients,
                       {trains ? unit.layout.numel() / unit.sharding.gradient_shards() : 0}, unit.name());
  u.written = std::make_unique<bool[]>(size_t(unit.layout.params()));
}

MemoryKind GradientBuckets::home() const {
  return units_.empty() ? MemoryKind::device : units_[0].of->sharding.home.gradients;
}

int GradientBuckets::add_pass(std::vector<Visit> visits) {
  Pass& pass = passes_.emplace_back(Pass{.visits = std::move(visits)});
  pass.last_backward.assign(units_.size(), -1);
  for (int v = 0; v < int(pass.visits.size()); ++v) {
    if (!pass.visits[size_t(v)].backward) continue;
    int64_t numel = 0;
    for (int u : pass.visits[size_t(v)].units) {
      if (!units_[size_t(u)].trains()) continue;
      pass.last_backward[size_t(u)] = v;
      numel += round_up(units_[size_t(u)].of->layout.numel(), 64);
    }
    contribution_numel_ = std::max(contribution_numel_, numel);
  }
  for (int v = 0; v < int(pass.visits.size()); ++v)
    for (int u : pass.visits[size_t(v)].units)
      if (pass.last_backward[size_t(u)] == v) pass.completes.push_back(u);
  lay_out(pass);
  return int(passes_.size()) - 1;
}

// From the first visit that writes it until its reduction, which may end one visit later.
void GradientBuckets::lay_out(Pass& pass) const {
  for (int u = 0; u < int(units_.size()); ++u) {
    const int last = pass.last_backward[size_t(u)];
    if (last < 0 || !units_[size_t(u)].of->sharding.buckets()) continue;
    int first = last;
    for (int v = last; v >= 0; --v) {
      const std::vector<int>& units = pass.visits[size_t(v)].units;
      if (pass.visits[size_t(v)].backward && std::find(units.begin(), units.end(), u) != units.end())
        first = v;
    }
    const int64_t numel = units_[size_t(u)].of->layout.numel();
    pass.buckets.add({u, first, last, {first, last + (options_.overlap ? 1 : 0), numel}});
  }
  pass.buckets.place();
}

// What a rank alone puts into a bucket does not travel.
DType GradientBuckets::bucket_type(const Unit& unit) const {
  return unit.of->sharding.reduce_each_micro->size() > 1 ? options_.wire : options_.gradients;
}

// Places are elements of the widest type that any unit's bucket has.
void GradientBuckets::commit() {
  int64_t bucket = 0, landing = 0, wire = 0;
  for (const Pass& pass : passes_) bucket = std::max(bucket, pass.buckets.numel());
  DType widest = size_of(options_.wire) < size_of(options_.gradients) ? options_.wire : options_.gradients;
  for (const Unit& unit : units_) {
    if (!unit.trains()) continue;
    if (size_of(bucket_type(unit)) > size_of(widest)) widest = bucket_type(unit);
    const Sharding& sharding = unit.of->sharding;
    if (sharding.reduce_each_micro->size() > 1 && !homes_.reaches(home()))
      landing = std::max(landing, unit.gradients.tensor().numel());
    const bool reduces_later = sharding.reduce_each_step->size() > 1 || sharding.reduce_replicas->size() > 1;
    if (reduces_later && options_.wire != options_.gradients) wire = std::max(wire, unit.of->layout.numel());
  }
  const auto device = MemoryKind::device;
  buckets_ = memory_.allocate(device, Category::buckets, widest, {bucket}, "gradient buckets");
  landing_ = memory_.allocate(MemoryKind::pinned, Category::staging, options_.wire, {landing},
                              "reduced gradient on its way home");
  wire_ = memory_.allocate(home(), Category::buckets, options_.wire, {wire}, "gradients on the wire");
  if (!options_.exact()) return;
  contributions_ = memory_.allocate(device, Category::buckets, DType::fp32, {contribution_numel_},
                                    "gradients before rounding");
  overflows_ = memory_.allocate(device, Category::buckets, DType::int64, {1}, "overflows");
}

void GradientBuckets::show_in(Trace& trace) {
  trace_ = &trace;
  trace.name(comm_, "gradients home", "gradient");
}

void GradientBuckets::begin_step(double unscale, GradientUser* user) {
  user_ = user;
  complete_.clear();
  if (options_.exact()) kernels::launch(kernels::Fill{.y = overflows_}, compute_);
  to_grid_ = std::ldexp(unscale, options_.grid);
  for (Unit& unit : units_) {
    unit.reduced = unit.begun = false;
    std::fill_n(unit.written.get(), unit.of->layout.params(), false);
  }
}

void GradientBuckets::begin_pass(int pass, bool last) {
  pass_ = &passes_[size_t(pass)];
  last_ = last;
  // The buckets of the pass before are free once its last reductions are done.
  const Event before = reduced_.empty() ? Event() : reduced_.back();
  reduced_.assign(pass_->visits.size() + 1, Event());
  reduced_[0] = before;
  if (user_ && last_) user_->expect(pass_->completes);
}

Tensor GradientBuckets::place_of(const Stay& s) const {
  const Unit& unit = units_[size_t(s.unit)];
  const Tensor place = buckets_.tensor().slice({s.offset, s.offset + unit.of->layout.numel()});
  return {place.raw(), bucket_type(unit), place.shape(), place.memory()};
}

std::vector<GradientSlot> GradientBuckets::slots(int visit) {
  // Buckets whose place this visit may reuse were reduced at least two visits ago (one, without overlap).
  compute_.wait(reduced_[size_t(std::max(0, visit - (options_.overlap ? 1 : 0)))]);
  std::vector<GradientSlot> slots;
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = units_[size_t(u)];
    if (!unit.trains()) {
      slots.resize(slots.size() + size_t(unit.of->layout.params()));
      continue;
    }
    Tensor full = unit.gradients;
    if (const Stay* bucket = pass_->buckets.find(u, visit)) {
      full = place_of(*bucket);
      if (visit == bucket->first_use && unit.continues())
        copy(full, unit.gradients, compute_);
      else if (visit == bucket->first_use)
        std::fill_n(unit.written.get(), unit.of->layout.params(), false);
    }
    if (options_.exact()) {
      full = contribution(visit, u);
      std::fill_n(unit.written.get(), unit.of->layout.params(), false);
    }
    for (int p = 0; p < unit.of->layout.params(); ++p)
      slots.push_back({unit.of->view(p, full), &unit.written[size_t(p)]});
  }
  return slots;
}

Tensor GradientBuckets::contribution(int visit, int unit) const {
  int64_t at = 0;
  for (int u : pass_->visits[size_t(visit)].units) {
    if (!units_[size_t(u)].trains()) continue;
    const int64_t numel = units_[size_t(u)].of->layout.numel();
    if (u == unit) return contributions_.tensor().slice({at, at + numel});
    at += round_up(numel, 64);
  }
  fail(Exit::internal, "unit {} is not in visit {}", unit, visit);
}

void GradientBuckets::round_contributions(int visit) {
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = units_[size_t(u)];
    if (!unit.trains()) continue;
    const Tensor full = contribution(visit, u);
    clear_unwritten(unit, full);
    const Stay* bucket = pass_->buckets.find(u, visit);
    const bool holds_something =
        bucket ? visit != bucket->first_use || unit.continues() : std::exchange(unit.begun, true);
    kernels::launch(kernels::RoundToGrid{.y = bucket ? place_of(*bucket) : unit.gradients.tensor(),
                                         .bad = overflows_,
                                         .x = full,
                                         .factor = to_grid_,
                                         .limit = options_.limit,
                                         .accumulate = holds_something},
                    compute_);
  }
}

void GradientBuckets::finish(int visit) {
  if (options_.exact() && pass_->visits[size_t(visit)].backward) round_contributions(visit);
  // reduced_[v + 1]: everything reduced up to and including visit v.
  reduced_[size_t(visit) + 1] = reduced_[size_t(visit)];
  if (!pass_->visits[size_t(visit)].backward) return;
  bool any = false;
  for (int u : pass_->visits[size_t(visit)].units) {
    if (pass_->last_backward[size_t(u)] != visit) continue;
    const Stay* bucket = pass_->buckets.find(u, visit);
    if (!bucket && !last_) continue;
    reduce(units_[size_t(u)], bucket);
    any = true;
  }
  if (any) reduced_[size_t(visit) + 1] = comm_.record();
  if (!user_ || !last_) return;
  if (options_.overlap) hand_over();  // those of visits before this one, whose reductions ran behind it
  for (int u : pass_->visits[size_t(visit)].units)
    if (pass_->last_backward[size_t(u)] == visit) complete_.emplace_back(u, reduced_[size_t(visit) + 1]);
  if (!options_.overlap) hand_over();
}

void GradientBuckets::hand_over() {
  for (const auto& [unit, reduced] : std::exchange(complete_, {})) {
    compute_.wait(reduced);
    user_->complete(unit);
  }
}

// Parameters that no layer wrote, and the padding, have gradient zero.
void GradientBuckets::clear_unwritten(Unit& unit, Tensor full) {
  for (int p = 0; p < unit.of->layout.params(); ++p)
    if (!unit.written[size_t(p)])
      kernels::launch(kernels::Fill{.y = full.slice(unit.of->layout.range(p))}, compute_);
  const Range padding{unit.of->layout.used_numel(), unit.of->layout.numel()};
  if (!padding.empty()) kernels::launch(kernels::Fill{.y = full.slice(padding)}, compute_);
}

void GradientBuckets::reduce(Unit& unit, const Stay* bucket) {
  if (!options_.exact()) clear_unwritten(unit, bucket ? place_of(*bucket) : unit.gradients);
  comm_.wait(compute_.record());
  if (bucket) reduce_bucket(unit, *bucket);
  if (last_) reduce_shard(unit);
}

// The sum over the ranks of a bucket goes to its home: it is written there, or added to what is there.
void GradientBuckets::reduce_bucket(Unit& unit, const Stay& bucket) {
  comm::Communicator& ranks = *unit.of->sharding.reduce_each_micro;
  const comm::Call call{.what = unit.of->name(), .max_numel = options_.reduce_numel};
  const Tensor full = place_of(bucket), sum = unit.gradients;
  const bool adds = unit.reduced && !unit.continues();
  unit.reduced = true;
  Trace* const trace = unit.of->sharding.home.gradients == MemoryKind::device ? nullptr : trace_;
  if (!adds && full.dtype() == sum.dtype() && homes_.reaches(sum.memory())) {
    const TraceSpan seen(trace, comm_, "gradient", unit.of->name());
    return ranks.reduce_scatter(sum, full, comm_, call);
  }
  Tensor shard = full.slice(Range{0, sum.numel()}.shifted(ranks.rank() * sum.numel()));
  ranks.reduce_scatter(shard, full, comm_, call);
  const TraceSpan seen(trace, comm_, "gradient", unit.of->name());
  if (!adds && shard.dtype() == sum.dtype()) return copy(sum, shard, comm_);
  if (landing_.tensor().numel() > 0) {
    const Tensor near_home = landing_.tensor().slice({0, sum.numel()});
    copy(near_home, shard, comm_);
    shard = near_home;
  }
  homes_.run(sum.memory(), comm_, [&](Stream& stream) {
    if (!adds)
      kernels::launch(kernels::Cast{.y = sum, .x = shard}, stream);
    else if (options_.exact())
      kernels::launch(kernels::AddIntegers{.y = sum, .x = shard}, stream);
    else
      kernels::launch(kernels::Axpy{.y = sum, .x = shard}, stream);
  });
}

// What is left of the sum over the data ranks, once a step.
void GradientBuckets::reduce_shard(Unit& unit) {
  const Sharding& sharding = unit.of->sharding;
  if (sharding.reduce_each_step->size() == 1 && sharding.reduce_replicas->size() == 1) return;
  const comm::Call call{.what = unit.of->name(), .max_numel = options_.reduce_numel};
  const Tensor sum = unit.gradients;
  const bool casts = options_.wire != options_.gradients;
  Tensor full = sum;
  auto cast = [&](Tensor y, Tensor x) {
    homes_.run(sum.memory(), comm_,
               [&](Stream& stream) { kernels::launch(kernels::Cast{.y = y, .x = x}, stream); });
  };
  if (casts) cast(full = wire_.tensor().slice({0, sum.numel()}), sum);
  const int64_t shard = div_exact(full.numel(), sharding.reduce_each_step->size());
  const Range mine = Range{0, shard}.shifted(sharding.reduce_each_step->rank() * shard);
  sharding.reduce_each_step->reduce_scatter(full.slice(mine), full, comm_, call);
  sharding.reduce_replicas->all_reduce(full.slice(mine), comm_, call);
  if (casts) cast(sum.slice(mine), full.slice(mine));
}

void GradientBuckets::wait() {
  compute_.wait(comm_.record());
  hand_over();
  user_ = nullptr;
}

Tensor GradientBuckets::slice(int index) const {
  const Unit& unit = units_[size_t(index)];
  if (unit.gradients.tensor().numel() == 0) return unit.gradients;
  const int64_t n = unit.of->slice_numel();
  return unit.gradients.tensor().slice(Range{0, n}.shifted(unit.of->sharding.reduce_each_step->rank() * n));
}

std::vector<Tensor> GradientBuckets::buffers() const {
  std::vector<Tensor> out{buckets_, wire_};
  for (const Unit& unit : units_) out.push_back(unit.gradients);
  return out;
}

}  // namespace cleave::zero
