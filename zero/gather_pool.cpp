#include "zero/gather_pool.h"

#include <algorithm>

#include "device/copy.h"

namespace cleave::zero {

GatherPool::GatherPool(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm)
    : memory_(memory), options_(options), compute_(compute), comm_(comm) {}

void GatherPool::add_unit(const StoredUnit& unit) {
  Unit& u = units_.emplace_back(Unit{.of = &unit});
  if (unit.sharding.home.parameters == MemoryKind::disk)
    u.on_disk = disk_.add(unit.shard_numel());
  else
    u.weights = memory_.allocate(unit.sharding.home.parameters, Category::weights, options_.weights,
                                 {unit.shard_numel()}, unit.name());
}

int GatherPool::add_pass(std::vector<Visit> visits) {
  Pass& pass = passes_.emplace_back(Pass{.visits = std::move(visits)});
  lay_out(pass);
  pass.ready.resize(pass.gathers.all().size());
  std::vector<int> on_disk;
  for (const Stay& s : pass.gathers.all())
    if (const int shard = units_[size_t(s.unit)].on_disk; shard >= 0) on_disk.push_back(shard);
  return disk_.add_pass(std::move(on_disk));
}

// A unit that is used in neighbouring visits (the last layer's forward and backward) is gathered once.
void GatherPool::lay_out(Pass& pass) const {
  for (int v = 0; v < int(pass.visits.size()); ++v) {
    if (!pass.visits[size_t(v)].parameters) continue;
    for (int u : pass.visits[size_t(v)].units) {
      const StoredUnit& unit = *units_[size_t(u)].of;
      if (!unit.sharding.gathers()) continue;
      if (Stay* before = v > 0 ? pass.gathers.find(u, v - 1) : nullptr) {
        before->last_use = before->lifetime.last = v;
        continue;
      }
      int first = std::max(0, v - options_.prefetch_visits);
      while (first < v && pass.gathers.numel_at(first) + unit.layout.numel() > options_.live_numel) ++first;
      pass.gathers.add({u, v, v, {first, v, unit.layout.numel()}});
    }
  }
  pass.gathers.place();
}

void GatherPool::commit() {
  int64_t gathered = 0;
  for (const Pass& pass : passes_) gathered = std::max(gathered, pass.gathers.numel());
  gathered_ = memory_.allocate(MemoryKind::device, Category::gathered, options_.weights, {gathered},
                               "gathered layers");
  disk_.commit(memory_, options_.disk, options_.weights);
}

void GatherPool::show_in(Trace& trace) {
  trace_ = &trace;
  trace.name(comm_, "weights from home", "gather");
  disk_.show_in(trace);
}

void GatherPool::begin_pass(int pass) {
  pass_ = &passes_[size_t(pass)];
  disk_.begin_pass(pass);
}

Tensor GatherPool::place_of(const Stay& s) const {
  return gathered_.tensor().slice({s.offset, s.offset + units_[size_t(s.unit)].of->layout.numel()});
}

// A shard from another home comes into its own place in the whole first, so that transports find it on the
// device.
Event GatherPool::gather(const Stay& s) {
  const Unit& unit = units_[size_t(s.unit)];
  comm::Communicator& ranks = *unit.of->sharding.gather_on_use;
  const Tensor full = place_of(s);
  const int64_t numel = unit.of->shard_numel();
  const Tensor place = full.slice(Range{0, numel}.shifted(ranks.rank() * numel));
  Tensor shard = unit.weights;
  // The place was used by visits that ended before this one began; prefetched ones are still computing
  // elsewhere.
  comm_.wait(released_);
  if (unit.of->sharding.home.parameters != MemoryKind::device) {
    if (unit.on_disk >= 0) shard = disk_.take(unit.on_disk, comm_);
    const TraceSpan seen(trace_, comm_, "gather", unit.of->name());
    copy(place, shard, comm_);
    shard = place;
  }
  if (unit.on_disk >= 0) disk_.release(comm_.record());
  ranks.all_gather(full, shard, comm_, {.what = unit.of->name(), .max_numel = options_.gather_numel});
  return comm_.record();
}

std::vector<Tensor> GatherPool::acquire(int visit) {
  const std::vector<Stay>& gathers = pass_->gathers.all();
  for (size_t i = 0; i < gathers.size(); ++i)
    if (gathers[i].lifetime.first == visit) pass_->ready[i] = gather(gathers[i]);
  std::vector<Tensor> params;
  if (!pass_->visits[size_t(visit)].parameters) return params;
  for (int u : pass_->visits[size_t(visit)].units) {
    const Unit& unit = units_[size_t(u)];
    Tensor full = unit.weights;
    if (const Stay* s = pass_->gathers.find(u, visit)) {
      compute_.wait(pass_->ready[size_t(s - gathers.data())]);
      full = place_of(*s);
    }
    for (int p = 0; p < unit.of->layout.params(); ++p) params.push_back(unit.of->view(p, full));
  }
  return params;
}

void GatherPool::finish() { released_ = compute_.record(); }

Tensor GatherPool::slice(int index) const {
  const Unit& unit = units_[size_t(index)];
  if (unit.on_disk >= 0) return Tensor(nullptr, options_.weights, {unit.of->slice_numel()}, MemoryKind::disk);
  return unit.weights.tensor().slice(unit.of->slice_of_shard());
}

Tensor GatherPool::settled_slice(int index) {
  const Unit& unit = units_[size_t(index)];
  if (unit.on_disk < 0) return slice(index);
  return disk_.peek(unit.on_disk).slice(unit.of->slice_of_shard());
}

Tensor GatherPool::next_slice(int index) {
  const Unit& unit = units_[size_t(index)];
  if (unit.on_disk < 0) return slice(index);
  return disk_.begin_write(unit.on_disk, compute_).slice(unit.of->slice_of_shard());
}

void GatherPool::publish(int index, const Event& updated) {
  const Unit& unit = units_[size_t(index)];
  comm::Communicator& ranks = *unit.of->sharding.gather_on_publish;
  comm_.wait(updated);
  if (ranks.size() == 1 && unit.on_disk < 0) return;
  comm_.wait(compute_.record());
  const Tensor slice = next_slice(index);
  const Tensor whole = unit.on_disk < 0 ? unit.weights.tensor() : disk_.begin_write(unit.on_disk, compute_);
  ranks.all_gather(whole, slice, comm_, {.what = unit.of->name(), .max_numel = options_.gather_numel});
  if (unit.on_disk >= 0) disk_.write_behind(unit.on_disk, comm_.record());
}

void GatherPool::wait_for_published() {
  compute_.wait(comm_.record());
  released_ = compute_.record();  // gathers of the next pass must see the updated shards
  disk_.end_writes();
}

std::vector<Tensor> GatherPool::buffers() const {
  std::vector<Tensor> out{gathered_};
  for (const Unit& unit : units_)
    if (unit.on_disk < 0) out.push_back(unit.weights);
  return out;
}

}  // namespace cleave::zero
