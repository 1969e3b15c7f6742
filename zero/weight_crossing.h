// How the weights of a unit cross between ranks when it is gathered: each rank's shard is brought into its
// form, travels, and is brought back on arrival. It owns what the shards of a unit take on the way.
#pragma once
#include "device/memory.h"
#include "zero/stored_unit.h"
#include "zero/weight_form.h"

namespace cleave::zero {

class WeightCrossing {
 public:
  // All work runs on comm, where one gather follows another.
  WeightCrossing(Memory& memory, const StoreOptions& options, Stream& comm);

  // Set-up: every unit; commit.
  void add_unit(const StoredUnit& unit);
  void commit();

  // whole = the shards of all ranks of gather_on_use, the same values on each: where a form rounds, this
  // rank's own are rounded, too. The shard may be its place in the whole.
  void gather(const StoredUnit& unit, Tensor whole, Tensor shard);

  Tensor buffer() const {
    return travelling_;
  }  // what collectives read and write, beside what they are given

 private:
  int64_t bytes(const StoredUnit& unit) const;  // of a shard on the way; 0: it travels as it is

  Memory& memory_;
  StoreOptions options_;
  std::unique_ptr<WeightForm> form_;
  Stream& comm_;
  int64_t most_ = 0;  // bytes of all shards of a unit
  Buffer travelling_;
};

}  // namespace cleave::zero
