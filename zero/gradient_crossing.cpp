#include "zero/gradient_crossing.h"

#include <algorithm>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::zero {

GradientCrossing::GradientCrossing(Memory& memory, const StoreOptions& options, const GradientForm& form,
                                   Stream& comm)
    : memory_(memory), options_(options), form_(form), comm_(comm), homes_(memory) {}

void GradientCrossing::add_unit(const StoredUnit& unit, int64_t shard_numel) {
  const Sharding& sharding = unit.sharding;
  if (sharding.reduce_each_micro->size() > 1 && !homes_.reaches(sharding.home.gradients))
    landing_numel_ = std::max(landing_numel_, shard_numel);
  const bool reduces_later = sharding.reduce_each_step->size() > 1 || sharding.reduce_replicas->size() > 1;
  if (reduces_later && options_.wire != options_.gradients)
    wire_numel_ = std::max(wire_numel_, unit.layout.numel());
  add_sum(unit, *sharding.reduce_each_micro, unit.layout.numel());
  add_sum(unit, *sharding.reduce_each_step, shard_numel);
  add_sum(unit, *sharding.reduce_replicas, unit.slice_numel());
}

void GradientCrossing::add_sum(const StoredUnit& unit, comm::Communicator& ranks, int64_t numel) {
  if (ranks.size() == 1) return;
  const GradientForm::Needs needs = form_.crossing(numel, ranks.size());
  most_travelling_ = std::max(most_travelling_, needs.travelling);
  if (needs.kept.numel == 0) return;
  Buffer& kept = kept_[{&unit, &ranks}];
  kept = memory_.allocate(needs.kept.home, needs.kept.category, needs.kept.dtype, {needs.kept.numel},
                          unit.name());
}

// Sums follow one another in comm order and share the staging memory. The sum of a group of one is its term.
void GradientCrossing::add_up(const StoredUnit& unit, comm::Communicator& ranks, Tensor sum, Tensor terms) {
  const comm::Call call{.what = unit.name(), .max_numel = options_.reduce_numel};
  const bool whole = sum.raw() == terms.raw() && sum.numel() == terms.numel();
  if (ranks.size() == 1) return ranks.reduce_scatter(sum, terms, comm_, call);
  const auto kept = kept_.find({&unit, &ranks});
  const GradientForm::Crossed c{
      ranks, sum, terms, kept == kept_.end() ? Tensor() : kept->second.tensor(), travelling_, call};
  whole ? form_.all_reduce(c, comm_) : form_.reduce_scatter(c, comm_);
}

void GradientCrossing::commit(MemoryKind home) {
  landing_ = memory_.allocate(MemoryKind::pinned, Category::staging, options_.wire, {landing_numel_},
                              "reduced gradient on its way home");
  wire_ = memory_.allocate(home, Category::buckets, options_.wire, {wire_numel_}, "gradients on the wire");
  if (most_travelling_ > 0)
    travelling_ = memory_.allocate(MemoryKind::device, Category::buckets, DType::uint8, {most_travelling_},
                                   "gradients on their way");
}

void GradientCrossing::show_in(Trace& trace) {
  trace_ = &trace;
  trace.name(comm_, "gradients home", "gradient");
}

void GradientCrossing::reduce(const StoredUnit& unit, Tensor sum, Tensor full, bool adds) {
  comm::Communicator& ranks = *unit.sharding.reduce_each_micro;
  Trace* const trace = sum.memory() == MemoryKind::device ? nullptr : trace_;
  if (!adds && full.dtype() == sum.dtype() && homes_.reaches(sum.memory())) {
    const TraceSpan seen(trace, comm_, "gradient", unit.name());
    return add_up(unit, ranks, sum, full);
  }
  Tensor shard = full.slice(Range{0, sum.numel()}.shifted(ranks.rank() * sum.numel()));
  add_up(unit, ranks, shard, full);
  const TraceSpan seen(trace, comm_, "gradient", unit.name());
  if (!adds && shard.dtype() == sum.dtype()) return copy(sum, shard, comm_);
  if (landing_.tensor().numel() > 0) {
    const Tensor near_home = landing_.tensor().slice({0, sum.numel()});
    copy(near_home, shard, comm_);
    shard = near_home;
  }
  homes_.run(sum.memory(), comm_, [&](Stream& stream) {
    if (adds)
      form_.add(sum, shard, stream);
    else
      kernels::launch(kernels::Cast{.y = sum, .x = shard}, stream);
  });
}

void GradientCrossing::bring_back(const StoredUnit& unit, Tensor bucket, Tensor sum, Stream& stream) {
  const TraceSpan seen(sum.memory() == MemoryKind::device ? nullptr : trace_, stream, "gradient",
                       unit.name());
  copy(bucket, sum, stream);
}

void GradientCrossing::finish(const StoredUnit& unit, Tensor sum) {
  const Sharding& sharding = unit.sharding;
  if (sharding.reduce_each_step->size() == 1 && sharding.reduce_replicas->size() == 1) return;
  const bool casts = options_.wire != options_.gradients;
  Tensor full = sum;
  auto cast = [&](Tensor y, Tensor x) {
    homes_.run(sum.memory(), comm_,
               [&](Stream& stream) { kernels::launch(kernels::Cast{.y = y, .x = x}, stream); });
  };
  if (casts) cast(full = wire_.tensor().slice({0, sum.numel()}), sum);
  const int64_t shard = div_exact(full.numel(), sharding.reduce_each_step->size());
  const Range mine = Range{0, shard}.shifted(sharding.reduce_each_step->rank() * shard);
  const Tensor part = full.slice(mine);
  add_up(unit, *sharding.reduce_each_step, part, full);
  add_up(unit, *sharding.reduce_replicas, part, part);
  if (casts) cast(sum.slice(mine), full.slice(mine));
}

void GradientCrossing::clear(Tensor sum) {
  homes_.run(sum.memory(), comm_, [&](Stream& stream) { kernels::launch(kernels::Fill{.y = sum}, stream); });
}

}  // namespace cleave::zero
