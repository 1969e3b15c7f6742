#include "zero/weight_crossing.h"

#include <algorithm>

namespace cleave::zero {

WeightCrossing::WeightCrossing(Memory& memory, const StoreOptions& options, Stream& comm)
    : memory_(memory),
      options_(options),
      used_(WeightForm::of_use(options)),
      published_(WeightForm::of_publication(options)),
      comm_(comm) {}

WeightCrossing::Route WeightCrossing::of_use(const StoredUnit& unit) const {
  return {*unit.sharding.gather_on_use, *used_, unit.shard_numel()};
}

WeightCrossing::Route WeightCrossing::of_publication(const StoredUnit& unit) const {
  return {*unit.sharding.gather_on_publish, *published_, unit.slice_numel()};
}

void WeightCrossing::add_unit(const StoredUnit& unit) {
  for (const Route& route : {of_use(unit), of_publication(unit)}) {
    const int64_t each = route.bytes(), size = route.ranks.size();
    most_ = std::max(most_, each * size);
    in_pieces_ = in_pieces_ || (size > 1 && (each > 0 ? each : route.numel) > options_.gather_numel / size);
  }
}

void WeightCrossing::commit() {
  if (most_ > 0)
    travelling_ = memory_.allocate(MemoryKind::device, Category::gathered, DType::uint8, {most_},
                                   "weights on their way");
}

void WeightCrossing::gather(const StoredUnit& unit, Tensor whole, Tensor shard) {
  cross(of_use(unit), whole, shard, unit.name());
}

void WeightCrossing::publish(const StoredUnit& unit, Tensor shard, Tensor slice) {
  cross(of_publication(unit), shard, slice, unit.name());
}

void WeightCrossing::cross(const Route& route, Tensor whole, Tensor part, const std::string& what) {
  const auto& [ranks, form, numel] = route;
  const comm::Call call{.what = what, .max_numel = options_.gather_numel};
  const int64_t each = route.bytes();
  if (each == 0) return ranks.all_gather(whole, part, comm_, call);
  const Tensor all = travelling_.tensor().slice({0, each * ranks.size()});
  const auto of_rank = [&](int r) { return all.slice(Range{0, each}.shifted(r * each)); };
  form.encode(of_rank(ranks.rank()), part, comm_);
  ranks.all_gather(all, of_rank(ranks.rank()), comm_, call);
  for (int r = 0; r < ranks.size(); ++r)
    form.decode(whole.slice(Range{0, route.numel}.shifted(r * route.numel)), of_rank(r), comm_);
}

}  // namespace cleave::zero
