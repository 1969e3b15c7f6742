// Reduction of a unit's gradients between ranks. Sums the whole gradient over the ranks of the unit's
// sharding into a shard, brings the shard to its home, and completes the sum over the data ranks at the end
// of a step. Owns the staging memory and the state that the gradient form keeps for each sum.
#pragma once
#include <map>
#include <utility>

#include "device/memory.h"
#include "device/trace.h"
#include "offload/home_stream.h"
#include "zero/gradient_form.h"
#include "zero/stored_unit.h"

namespace cleave::zero {

class GradientCrossing {
 public:
  // All collectives run on comm. The form must outlive this object.
  GradientCrossing(Memory& memory, const StoreOptions& options, const GradientForm& form, Stream& comm);

  // Set-up: add_unit for every trained unit with the elements of its shard; then commit. All shards live in
  // `home`.
  void add_unit(const StoredUnit& unit, int64_t shard_numel);
  void commit(MemoryKind home);
  void show_in(Trace& trace);  // traces transfers to homes; the trace must outlive this object

  // sum = (adds ? sum : 0) + this rank's shard of the sum of `full` over reduce_each_micro. `full` can be
  // reused after this call's work on comm. `full` has the wire type, or the type of `sum` on a single rank.
  void reduce(const StoredUnit& unit, Tensor sum, Tensor full, bool adds);
  // Copies the unit's gradient so far from its home to a bucket of the same type.
  void bring_back(const StoredUnit& unit, Tensor bucket, Tensor sum, Stream& stream);
  // Sums over reduce_each_step and reduce_replicas, in place.
  void finish(const StoredUnit& unit, Tensor sum);
  void clear(Tensor sum);  // zeros, at home

 private:
  void add_sum(const StoredUnit& unit, comm::Communicator& ranks, int64_t numel);
  // sum = this rank's shard of the sum of `terms`, or the complete sum if both are the same tensor.
  void add_up(const StoredUnit& unit, comm::Communicator& ranks, Tensor sum, Tensor terms);

  Memory& memory_;
  StoreOptions options_;
  const GradientForm& form_;
  Stream& comm_;
  int64_t landing_numel_ = 0, wire_numel_ = 0;  // of the largest unit
  int64_t most_travelling_ = 0;
  Buffer wire_, travelling_;
  std::map<std::pair<const StoredUnit*, const comm::Communicator*>, Buffer> kept_;  // of the form, by sum
  Buffer landing_;  // staging on the way home, if kernels cannot reach the home of the gradients
  Trace* trace_ = nullptr;
  offload::HomeStream homes_;  // destroyed first: it finishes enqueued work
};

}  // namespace cleave::zero
