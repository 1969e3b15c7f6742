#include "zero/weight_crossing.h"

#include <algorithm>

namespace cleave::zero {

WeightCrossing::WeightCrossing(Memory& memory, const StoreOptions& options, Stream& comm)
    : memory_(memory), options_(options), form_(WeightForm::of(options)), comm_(comm) {}

int64_t WeightCrossing::bytes(const StoredUnit& unit) const {
  return unit.sharding.gather_on_use->size() > 1 ? form_->bytes(unit.shard_numel()) : 0;
}

void WeightCrossing::add_unit(const StoredUnit& unit) {
  most_ = std::max(most_, bytes(unit) * unit.sharding.gather_on_use->size());
}

void WeightCrossing::commit() {
  if (most_ > 0)
    travelling_ = memory_.allocate(MemoryKind::device, Category::gathered, DType::uint8, {most_},
                                   "weights on their way");
}

void WeightCrossing::gather(const StoredUnit& unit, Tensor whole, Tensor shard) {
  comm::Communicator& ranks = *unit.sharding.gather_on_use;
  const comm::Call call{.what = unit.name(), .max_numel = options_.gather_numel};
  const int64_t each = bytes(unit), numel = unit.shard_numel();
  if (each == 0) return ranks.all_gather(whole, shard, comm_, call);
  const Tensor all = travelling_.tensor().slice({0, each * ranks.size()});
  const auto of_rank = [&](int r) { return all.slice(Range{0, each}.shifted(r * each)); };
  form_->encode(of_rank(ranks.rank()), shard, comm_);
  ranks.all_gather(all, of_rank(ranks.rank()), comm_, call);
  for (int r = 0; r < ranks.size(); ++r)
    form_->decode(whole.slice(Range{0, numel}.shifted(r * numel)), of_rank(r), comm_);
}

}  // namespace cleave::zero
