#include "zero/parameter_store.h"

#include <algorithm>
#include <cmath>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "zero/store_parts.h"

namespace cleave {

ParameterStore::ParameterStore(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
    : memory_(memory), options_(options), compute_(compute), comm_(comm), homes_(memory) {}
ParameterStore::~ParameterStore() = default;

int ParameterStore::units() const { return int(units_.size()); }
const FlatLayout& ParameterStore::layout(int unit) const { return units_[size_t(unit)]->layout; }

void ParameterStore::begin_step(double unscale, GradientUser* user) {
  user_ = user;
  complete_.clear();
  disk_.begin_step();
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
  disk_.begin_pass(pass);
  if (user_ && last_) user_->expect(pass_->completes);
}

Tensor ParameterStore::place_of(const Instance& i, const Buffer& block) const {
  return block.tensor().slice({i.offset, i.offset + layout(i.unit).numel()});
}

// A shard from another home comes into its own place in the whole first, so that transports find it on the
// device.
void ParameterStore::gather(Instance& i) {
  Unit& unit = *units_[size_t(i.unit)];
  Communicator& ranks = *unit.plan.gather_on_use;
  const Tensor full = place_of(i, gathered_);
  const Tensor place = full.slice(Range{0, unit.shard_numel()}.shifted(ranks.rank() * unit.shard_numel()));
  Tensor shard = unit.weights;
  // The place was used by visits that ended before this one began; prefetched ones are still computing
  // elsewhere.
  comm_.wait(released_);
  if (unit.plan.home.parameters != MemoryKind::device) {
    if (unit.on_disk >= 0) shard = disk_.take(unit.on_disk, comm_);
    const TraceSpan seen(trace_, comm_, "gather", unit.layout.name());
    copy(place, shard, comm_);
    shard = place;
  }
  if (unit.on_disk >= 0) disk_.release(comm_.record());
  ranks.all_gather(full, shard, comm_, {.what = unit.layout.name(), .max_numel = options_.gather_numel});
  i.ready = comm_.record();
}

std::vector<Tensor> ParameterStore::acquire(int visit) {
  for (Instance& i : pass_->gathers)
    if (i.lifetime.first == visit) gather(i);
  std::vector<Tensor> params;
  if (!pass_->visits[size_t(visit)].parameters) return params;
  for (int u : pass_->visits[size_t(visit)].units) {
    Unit& unit = *units_[size_t(u)];
    Tensor full = unit.weights;
    if (Instance* i = pass_->gather_of(u, visit)) {
      compute_.wait(i->ready);
      full = place_of(*i, gathered_);
    }
    for (int p = 0; p < unit.layout.params(); ++p) params.push_back(view_of(unit.layout, p, full));
  }
  return params;
}

Range ParameterStore::slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const ZeroPlan& p = unit.plan;
  const int64_t at = p.reduce_each_micro->rank() * p.reduce_each_step->size() + p.reduce_each_step->rank();
  return Range{0, unit.slice_numel()}.shifted(at * unit.slice_numel());
}

Tensor ParameterStore::weights_slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const int64_t n = unit.slice_numel();
  if (unit.on_disk >= 0) return Tensor(nullptr, options_.weights, {n}, MemoryKind::disk);
  return unit.weights.tensor().slice(Range{0, n}.shifted(unit.plan.gather_on_publish->rank() * n));
}

Tensor ParameterStore::settled_weights_slice(int index) {
  const Unit& unit = *units_[size_t(index)];
  if (unit.on_disk < 0) return weights_slice(index);
  const int64_t n = unit.slice_numel();
  return disk_.peek(unit.on_disk).slice(Range{0, n}.shifted(unit.plan.gather_on_publish->rank() * n));
}

Tensor ParameterStore::next_weights_slice(int index) {
  const Unit& unit = *units_[size_t(index)];
  if (unit.on_disk < 0) return weights_slice(index);
  const int64_t n = unit.slice_numel();
  const Tensor shard = disk_.begin_write(unit.on_disk, compute_);
  return shard.slice(Range{0, n}.shifted(unit.plan.gather_on_publish->rank() * n));
}

Tensor ParameterStore::gradient_slice(int index) const {
  const Unit& unit = *units_[size_t(index)];
  if (!unit.trains()) return unit.gradients;
  const int64_t n = unit.slice_numel();
  return unit.gradients.tensor().slice(Range{0, n}.shifted(unit.plan.reduce_each_step->rank() * n));
}

// Cut over the replicas as well, so that every stage adds the same pieces in the same order and the norm has
// the same bits: at every stage the pieces are those of the data ranks.
Range ParameterStore::norm_range(int index) const {
  const Unit& unit = *units_[size_t(index)];
  const Range mine =
      part(unit.slice_numel(), unit.plan.reduce_replicas->size(), unit.plan.reduce_replicas->rank());
  if (options_.counts_replicated) return mine;
  const Range split = intersect(mine, unit.layout.split().shifted(-slice(index).begin));
  return split.empty() ? Range{} : split;
}

void ParameterStore::publish(int index, const Event& updated) {
  Unit& unit = *units_[size_t(index)];
  Communicator& ranks = *unit.plan.gather_on_publish;
  comm_.wait(updated);
  if (ranks.size() == 1 && unit.on_disk < 0) return;
  comm_.wait(compute_.record());
  const Tensor slice = next_weights_slice(index);
  const Tensor whole = unit.on_disk < 0 ? unit.weights.tensor() : disk_.begin_write(unit.on_disk, compute_);
  ranks.all_gather(whole, slice, comm_, {.what = unit.layout.name(), .max_numel = options_.gather_numel});
  if (unit.on_disk >= 0) disk_.write_behind(unit.on_disk, comm_.record());
}

std::vector<Tensor> ParameterStore::device_buffers() const {
  std::vector<Tensor> out;
  const auto add = [&](const Buffer& buffer) {
    if (buffer.defined() && buffer.tensor().memory() == MemoryKind::device) out.push_back(buffer);
  };
  for (const Buffer* buffer : {&gathered_, &buckets_, &wire_}) add(*buffer);
  for (const auto& unit : units_) add(unit->weights), add(unit->gradients);
  return out;
}

void ParameterStore::wait_for_weights() {
  compute_.wait(comm_.record());
  released_ = compute_.record();  // gathers of the next pass must see the updated shards
  disk_.end_writes();
}

void ParameterStore::sum_over_slices(Tensor partial_sums, std::string_view what, bool replicas) {
  if (units_.empty()) return;
  comm_.wait(compute_.record());
  const ZeroPlan& plan = units_[0]->plan;
  for (Communicator* c : {plan.reduce_each_micro, plan.reduce_each_step, plan.reduce_replicas})
    if (c != plan.reduce_replicas || replicas) c->all_reduce(partial_sums, comm_, {.what = what});
  compute_.wait(comm_.record());
}

}  // namespace cleave
