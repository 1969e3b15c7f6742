// Exchange of a unit's weights between ranks: gathers for a use and publication of updated slices. Each
// rank's part is encoded, sent and decoded on arrival. Owns the staging memory of the parts.
#pragma once
#include "device/memory.h"
#include "zero/stored_unit.h"
#include "zero/weight_form.h"

namespace cleave::zero {

class WeightCrossing {
 public:
  // All work runs on comm, one exchange after another.
  WeightCrossing(Memory& memory, const StoreOptions& options, Stream& comm);

  // Set-up: add_unit for every unit; then commit.
  void add_unit(const StoredUnit& unit);
  void commit();

  // Returns true if a gather of some unit exceeds StoreOptions::gather_numel, so that pieces are gathered.
  bool in_pieces() const { return in_pieces_; }

  // whole = the shards of all ranks of gather_on_use, with equal values on each rank: a rounding form also
  // rounds this rank's own shard. The shard may be its own range of `whole`.
  void gather(const StoredUnit& unit, Tensor whole, Tensor shard);
  // shard = the slices of all ranks of gather_on_publish. The slice must be its own range of the shard.
  void publish(const StoredUnit& unit, Tensor shard, Tensor slice);

 private:
  // Group that joins its equal parts, and the wire format of each part.
  struct Route {
    comm::Communicator& ranks;
    const WeightForm& form;
    int64_t numel;                                                              // of one part
    int64_t bytes() const { return ranks.size() > 1 ? form.bytes(numel) : 0; }  // 0: sent unencoded
  };
  Route of_use(const StoredUnit& unit) const;
  Route of_publication(const StoredUnit& unit) const;
  void cross(const Route& route, Tensor whole, Tensor part, const std::string& what);

  Memory& memory_;
  StoreOptions options_;
  std::unique_ptr<WeightForm> used_, published_;
  Stream& comm_;
  int64_t most_ = 0;  // bytes of all parts of a unit, maximum over units
  bool in_pieces_ = false;
  Buffer travelling_;
};

}  // namespace cleave::zero
