#include "zero/weight_shards.h"

#include "device/copy.h"

namespace cleave::zero {

WeightShards::WeightShards(Memory& memory, const StoreOptions& options, Stream& compute, Stream& comm,
                           Stream& from_home)
    : memory_(memory),
      options_(options),
      compute_(compute),
      comm_(comm),
      from_home_(from_home),
      crossing_(memory, options, comm) {}

void WeightShards::add_unit(const StoredUnit& unit) {
  CHECK(&from_home_ == &comm_ || unit.sharding.gather_on_use->size() == 1,
        "unit {}: fetches on another stream than comm cannot be followed by an all-gather", unit.name());
  Unit& u = units_.emplace_back(Unit{.of = &unit});
  if (unit.sharding.home.parameters == MemoryKind::disk)
    u.on_disk = disk_.add(unit.shard_numel());
  else
    u.weights = memory_.allocate(unit.sharding.home.parameters, Category::weights, options_.weights,
                                 {unit.shard_numel()}, unit.name());
  crossing_.add_unit(unit);
}

int WeightShards::add_pass(const std::vector<int>& fetched) {
  std::vector<int> on_disk;
  for (const int u : fetched)
    if (const int shard = units_[size_t(u)].on_disk; shard >= 0) on_disk.push_back(shard);
  return disk_.add_pass(std::move(on_disk));
}

void WeightShards::commit() {
  crossing_.commit();
  disk_.commit(memory_, options_.disk, options_.weights);
}

void WeightShards::show_in(Trace& trace) {
  trace_ = &trace;
  trace.name(from_home_, "weights from home", "gather");
  disk_.show_in(trace);
}

// Copies an off-device shard to its range of the whole first, because transports need it on the device.
Event WeightShards::fetch(int index, Tensor full, const Event& free) {
  const Unit& unit = units_[size_t(index)];
  comm::Communicator& ranks = *unit.of->sharding.gather_on_use;
  const int64_t numel = unit.of->shard_numel();
  const Tensor own = full.slice(Range{0, numel}.shifted(ranks.rank() * numel));
  Tensor shard = unit.weights;
  from_home_.wait(free), from_home_.wait(published_);
  if (unit.of->sharding.home.parameters != MemoryKind::device) {
    if (unit.on_disk >= 0) shard = disk_.take(unit.on_disk, from_home_);
    const TraceSpan seen(trace_, from_home_, "gather", unit.of->name());
    copy(own, shard, from_home_);
    shard = own;
  }
  if (unit.on_disk >= 0) disk_.release(from_home_.record());
  if (&from_home_ == &comm_) crossing_.gather(*unit.of, full, shard);
  return from_home_.record();
}

void WeightShards::wait_for_fetches() { compute_.wait(from_home_.record()); }

void WeightShards::add_views(int index, const Tensor& whole, std::vector<Tensor>& to) const {
  for (int p = 0; p < unit(index).layout.params(); ++p) to.push_back(unit(index).view(p, whole));
}

Tensor WeightShards::slice(int index) const {
  const Unit& unit = units_[size_t(index)];
  if (unit.on_disk >= 0) return Tensor(nullptr, options_.weights, {unit.of->slice_numel()}, MemoryKind::disk);
  return unit.weights.tensor().slice(unit.of->slice_of_shard());
}

Tensor WeightShards::settled_slice(int index) {
  const Unit& unit = units_[size_t(index)];
  if (unit.on_disk < 0) return slice(index);
  return disk_.peek(unit.on_disk).slice(unit.of->slice_of_shard());
}

Tensor WeightShards::next_slice(int index) {
  const Unit& unit = units_[size_t(index)];
  if (unit.on_disk < 0) return slice(index);
  return disk_.begin_write(unit.on_disk, compute_).slice(unit.of->slice_of_shard());
}

void WeightShards::publish(int index, std::span<const Event> updated) {
  const Unit& unit = units_[size_t(index)];
  for (const Event& event : updated) comm_.wait(event);
  if (unit.of->sharding.gather_on_publish->size() == 1 && unit.on_disk < 0) return;
  comm_.wait(compute_.record());
  const Tensor slice = next_slice(index);
  const Tensor whole = unit.on_disk < 0 ? unit.weights.tensor() : disk_.begin_write(unit.on_disk, compute_);
  crossing_.publish(*unit.of, whole, slice);
  if (unit.on_disk >= 0) disk_.write_behind(unit.on_disk, comm_.record());
}

void WeightShards::wait_for_published() {
  compute_.wait(comm_.record());
  published_ = compute_.record();  // later fetches must see the updated shards
  ++version_;
  disk_.end_writes();
}

}  // namespace cleave::zero
