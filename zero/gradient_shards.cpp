#include "zero/gradient_shards.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace cleave::zero {

GradientShards::GradientShards(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
    : memory_(memory),
      options_(options),
      compute_(compute),
      comm_(comm),
      form_(GradientForm::of(options)),
      crossing_(memory, options, *form_, comm) {}

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

// A single rank's bucket is not sent, so it keeps the accumulation type.
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
  for (const Unit& unit : units_)
    if (unit.trains()) crossing_.add_unit(*unit.of, unit.gradients.tensor().numel());
  crossing_.commit(home());
  form_->commit(memory_);
}

void GradientShards::begin_step(double unscale) {
  form_->begin_step(unscale, compute_);
  discard();
}

void GradientShards::discard() {
  for (Unit& unit : units_) {
    unit.reduced = unit.begun = false;
    std::fill_n(unit.written.get(), unit.of->layout.params(), false);
  }
}

bool GradientShards::holds(int index, int param) const {
  const Unit& unit = units_[size_t(index)];
  return buckets(index) ? unit.reduced : apart_numel(index) > 0 ? unit.begun : unit.written[size_t(param)];
}

void GradientShards::bring_back(int index, Tensor bucket) {
  crossing_.bring_back(unit(index), bucket, units_[size_t(index)].gradients, comm_);
}

void GradientShards::add_slots(int index, const WholeGradient& whole, std::vector<GradientSlot>& to) {
  Unit& unit = units_[size_t(index)];
  const int params = unit.of->layout.params();
  if (!unit.trains()) return to.resize(to.size() + size_t(params));
  const bool begins = whole.bucket.defined() && whole.first;
  const bool goes_on = begins && unit.continues();
  if (goes_on && !whole.back) crossing_.bring_back(*unit.of, whole.bucket, unit.gradients, compute_);
  if (whole.apart.defined() || (begins && !goes_on)) std::fill_n(unit.written.get(), params, false);
  const Tensor full = whole.apart.defined()    ? whole.apart
                      : whole.bucket.defined() ? whole.bucket
                                               : unit.gradients.tensor();
  for (int p = 0; p < params; ++p) to.push_back({unit.of->view(p, full), &unit.written[size_t(p)]});
}

void GradientShards::give(int index, const WholeGradient& whole) {
  Unit& unit = units_[size_t(index)];
  if (!whole.apart.defined() || !unit.trains()) return;
  clear_unwritten(unit, whole.apart);
  const bool holds_something =
      whole.bucket.defined() ? !whole.first || unit.continues() : std::exchange(unit.begun, true);
  form_->encode(whole.bucket.defined() ? whole.bucket : unit.gradients.tensor(), whole.apart, holds_something,
                compute_);
}

// Zeros the padding and all parameters that no layer wrote.
void GradientShards::clear_unwritten(Unit& unit, Tensor full) {
  for (int p = 0; p < unit.of->layout.params(); ++p)
    if (!unit.written[size_t(p)])
      kernels::launch(kernels::Fill{.y = full.slice(unit.of->layout.range(p))}, compute_);
  const Range padding{unit.of->layout.used_numel(), unit.of->layout.numel()};
  if (!padding.empty()) kernels::launch(kernels::Fill{.y = full.slice(padding)}, compute_);
}

void GradientShards::reduce(int index, const WholeGradient& whole) {
  Unit& unit = units_[size_t(index)];
  if (!whole.apart.defined())  // otherwise give() has cleared it
    clear_unwritten(unit, whole.bucket.defined() ? whole.bucket : unit.gradients.tensor());
  comm_.wait(compute_.record());
  if (whole.bucket.defined()) reduce_bucket(unit, whole.bucket);
}

void GradientShards::clear(int index) { crossing_.clear(units_[size_t(index)].gradients); }

void GradientShards::join(int index, Tensor bucket) {
  kernels::launch(kernels::Fill{.y = bucket}, comm_);
  reduce_bucket(units_[size_t(index)], bucket);
}

// Writes the bucket's sum over the ranks to its home, or adds it there.
void GradientShards::reduce_bucket(Unit& unit, Tensor full) {
  const bool adds = unit.reduced && !unit.continues();
  unit.reduced = true;
  crossing_.reduce(*unit.of, unit.gradients, full, adds);
}

void GradientShards::finish(int index) {
  crossing_.finish(this->unit(index), units_[size_t(index)].gradients);
}

bool GradientShards::can_reopen(int index) const {
  const Sharding& s = unit(index).sharding;
  const int ranks = s.reduce_each_step->size() * s.reduce_replicas->size();
  if (!trains(index) || buckets(index) || apart_numel(index) > 0 || ranks == 1) return false;
  const GradientForm::Needs needs = form_->crossing(unit(index).layout.numel(), ranks);
  return needs.kept.numel == 0 && needs.travelling == 0;
}

void GradientShards::reopen(int index) {
  Unit& unit = units_[size_t(index)];
  const Tensor whole = unit.gradients.tensor();
  const int64_t begin = unit.of->sharding.reduce_each_step->rank() * unit.of->slice_numel();
  const int64_t kept = unit.of->sharding.reduce_replicas->rank() == 0 ? unit.of->slice_numel() : 0;
  compute_.wait(comm_.record());
  for (const Range others : {Range{0, begin}, Range{begin + kept, whole.numel()}})
    if (!others.empty()) kernels::launch(kernels::Fill{.y = whole.slice(others)}, compute_);
  std::fill_n(unit.written.get(), unit.of->layout.params(), true);
}

Tensor GradientShards::slice(int index) const {
  const Unit& unit = units_[size_t(index)];
  if (unit.gradients.tensor().numel() == 0) return unit.gradients;
  const int64_t n = unit.of->slice_numel();
  return unit.gradients.tensor().slice(Range{0, n}.shifted(unit.of->sharding.reduce_each_step->rank() * n));
}

Tensor GradientShards::gather(int index) {
  Unit& unit = units_[size_t(index)];
  const Tensor whole = unit.gradients.tensor();
  comm::Communicator& ranks = *unit.of->sharding.reduce_each_step;
  if (whole.numel() > 0 && ranks.size() > 1)
    ranks.all_gather(whole, slice(index), comm_, {.what = "whole gradients"});
  return whole;
}

}  // namespace cleave::zero
