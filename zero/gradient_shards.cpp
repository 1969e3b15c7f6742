#include "zero/gradient_shards.h"

#include <algorithm>
#include <cmath>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/exact.h"

namespace cleave::zero {

GradientShards::GradientShards(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
    : memory_(memory), options_(options), compute_(compute), comm_(comm), homes_(memory) {}

void GradientShards::add_unit(const StoredUnit& unit) {
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

MemoryKind GradientShards::home() const {
  return units_.empty() ? MemoryKind::device : units_[0].of->sharding.home.gradients;
}

// What a rank alone puts into a bucket does not travel.
DType GradientShards::bucket_type(int unit) const {
  return this->unit(unit).sharding.reduce_each_micro->size() > 1 ? options_.wire : options_.gradients;
}

DType GradientShards::widest_bucket() const {
  DType widest = size_of(options_.wire) < size_of(options_.gradients) ? options_.wire : options_.gradients;
  for (int u = 0; u < units(); ++u)
    if (trains(u) && size_of(bucket_type(u)) > size_of(widest)) widest = bucket_type(u);
  return widest;
}

void GradientShards::commit() {
  int64_t landing = 0, wire = 0;
  for (const Unit& unit : units_) {
    if (!unit.trains()) continue;
    const Sharding& sharding = unit.of->sharding;
    if (sharding.reduce_each_micro->size() > 1 && !homes_.reaches(home()))
      landing = std::max(landing, unit.gradients.tensor().numel());
    const bool reduces_later = sharding.reduce_each_step->size() > 1 || sharding.reduce_replicas->size() > 1;
    if (reduces_later && options_.wire != options_.gradients) wire = std::max(wire, unit.of->layout.numel());
  }
  landing_ = memory_.allocate(MemoryKind::pinned, Category::staging, options_.wire, {landing},
                              "reduced gradient on its way home");
  wire_ = memory_.allocate(home(), Category::buckets, options_.wire, {wire}, "gradients on the wire");
  if (options_.exact())
    overflows_ = memory_.allocate(MemoryKind::device, Category::buckets, DType::int64, {1}, "overflows");
}

void GradientShards::show_in(Trace& trace) {
  trace_ = &trace;
  trace.name(comm_, "gradients home", "gradient");
}

void GradientShards::begin_step(double unscale) {
  if (options_.exact()) kernels::launch(kernels::Fill{.y = overflows_}, compute_);
  to_grid_ = std::ldexp(unscale, options_.grid);
  for (Unit& unit : units_) {
    unit.reduced = unit.begun = false;
    std::fill_n(unit.written.get(), unit.of->layout.params(), false);
  }
}

void GradientShards::add_slots(int index, const Place& place, std::vector<GradientSlot>& to) {
  Unit& unit = units_[size_t(index)];
  const int params = unit.of->layout.params();
  if (!unit.trains()) return to.resize(to.size() + size_t(params));
  const bool begins = place.bucket.defined() && place.first;
  const bool goes_on = begins && unit.continues();
  if (goes_on) copy(place.bucket, unit.gradients, compute_);
  if (options_.exact() || (begins && !goes_on)) std::fill_n(unit.written.get(), params, false);
  const Tensor full = options_.exact()         ? place.contribution
                      : place.bucket.defined() ? place.bucket
                                               : unit.gradients.tensor();
  for (int p = 0; p < params; ++p) to.push_back({unit.of->view(p, full), &unit.written[size_t(p)]});
}

void GradientShards::give(int index, const Place& place) {
  Unit& unit = units_[size_t(index)];
  if (!options_.exact() || !unit.trains()) return;
  clear_unwritten(unit, place.contribution);
  const bool holds_something =
      place.bucket.defined() ? !place.first || unit.continues() : std::exchange(unit.begun, true);
  kernels::launch(kernels::RoundToGrid{.y = place.bucket.defined() ? place.bucket : unit.gradients.tensor(),
                                       .bad = overflows_,
                                       .x = place.contribution,
                                       .factor = to_grid_,
                                       .limit = options_.limit,
                                       .accumulate = holds_something},
                  compute_);
}

// Parameters that no layer wrote, and the padding, have gradient zero.
void GradientShards::clear_unwritten(Unit& unit, Tensor full) {
  for (int p = 0; p < unit.of->layout.params(); ++p)
    if (!unit.written[size_t(p)])
      kernels::launch(kernels::Fill{.y = full.slice(unit.of->layout.range(p))}, compute_);
  const Range padding{unit.of->layout.used_numel(), unit.of->layout.numel()};
  if (!padding.empty()) kernels::launch(kernels::Fill{.y = full.slice(padding)}, compute_);
}

void GradientShards::reduce(int index, const Place& place) {
  Unit& unit = units_[size_t(index)];
  if (!options_.exact())
    clear_unwritten(unit, place.bucket.defined() ? place.bucket : unit.gradients.tensor());
  comm_.wait(compute_.record());
  if (place.bucket.defined()) reduce_bucket(unit, place.bucket);
}

void GradientShards::clear(int index) {
  const Tensor sum = units_[size_t(index)].gradients;
  homes_.run(sum.memory(), comm_, [&](Stream& stream) { kernels::launch(kernels::Fill{.y = sum}, stream); });
}

void GradientShards::join(int index, Tensor bucket) {
  kernels::launch(kernels::Fill{.y = bucket}, comm_);
  reduce_bucket(units_[size_t(index)], bucket);
}

// The sum over the ranks of a bucket goes to its home: it is written there, or added to what is there.
void GradientShards::reduce_bucket(Unit& unit, Tensor full) {
  comm::Communicator& ranks = *unit.of->sharding.reduce_each_micro;
  const comm::Call call{.what = unit.of->name(), .max_numel = options_.reduce_numel};
  const Tensor sum = unit.gradients;
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

void GradientShards::finish(int index) {
  const Unit& unit = units_[size_t(index)];
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

Tensor GradientShards::slice(int index) const {
  const Unit& unit = units_[size_t(index)];
  if (unit.gradients.tensor().numel() == 0) return unit.gradients;
  const int64_t n = unit.of->slice_numel();
  return unit.gradients.tensor().slice(Range{0, n}.shifted(unit.of->sharding.reduce_each_step->rank() * n));
}

std::vector<Tensor> GradientShards::buffers() const {
  std::vector<Tensor> out{wire_};
  for (const Unit& unit : units_) out.push_back(unit.gradients);
  return out;
}

}  // namespace cleave::zero
