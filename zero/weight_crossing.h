// How the weights of a unit cross between ranks, when it is gathered for a use and when updated slices are
// published: each rank's part is brought into its form, travels, and is brought back on arrival. It owns what
// the parts of a unit take on the way.
#pragma once
#include "device/memory.h"
#include "zero/stored_unit.h"
#include "zero/weight_form.h"

namespace cleave::zero {

class WeightCrossing {
 public:
  // All work runs on comm, where one crossing follows another.
  WeightCrossing(Memory& memory, const StoreOptions& options, Stream& comm);

  // Set-up: every unit; commit.
  void add_unit(const StoredUnit& unit);
  void commit();

  // whole = the shards of all ranks of gather_on_use, the same values on each: where a form rounds, this
  // rank's own are rounded, too. The shard may be its range of the whole.
  void gather(const StoredUnit& unit, Tensor whole, Tensor shard);
  // shard = the slices of all ranks of gather_on_publish. The slice is its range of the shard.
  void publish(const StoredUnit& unit, Tensor shard, Tensor slice);

 private:
  // Whose equal parts become one on all of them, and how each travels.
  struct Route {
    comm::Communicator& ranks;
    const WeightForm& form;
    int64_t numel;                                                              // of a part
    int64_t bytes() const { return ranks.size() > 1 ? form.bytes(numel) : 0; }  // 0: it travels as it is
  };
  Route of_use(const StoredUnit& unit) const;
  Route of_publication(const StoredUnit& unit) const;
  void cross(const Route& route, Tensor whole, Tensor part, const std::string& what);

  Memory& memory_;
  StoreOptions options_;
  std::unique_ptr<WeightForm> used_, published_;
  Stream& comm_;
  int64_t most_ = 0;  // bytes of all parts of a unit
  Buffer travelling_;
};

}  // namespace cleave::zero
