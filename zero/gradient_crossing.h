// How the gradients of a unit cross between ranks: a whole one is summed over the ranks of its sharding into
// the shard of the sum, which is brought to its home in its form; and what is left of the sum over the data
// ranks at the end of a step. It owns what they pass through on the way, and what the form keeps of each sum.
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
  // All collectives run on comm. The form outlives this.
  GradientCrossing(Memory& memory, const StoreOptions& options, const GradientForm& form, Stream& comm);

  // Set-up: every unit that is trained, with the elements of its shard; commit. All shards live in `home`.
  void add_unit(const StoredUnit& unit, int64_t shard_numel);
  void commit(MemoryKind home);
  void show_in(Trace& trace);  // what goes to homes; the trace outlives this

  // sum = (adds ? sum : 0) + this rank's shard of the sum of `full` over reduce_each_micro, which `full` is
  // free behind on comm. `full` is of the wire's type, or of the sum's where the rank is alone.
  void reduce(const StoredUnit& unit, Tensor sum, Tensor full, bool adds);
  // Sums over reduce_each_step and reduce_replicas, in place.
  void finish(const StoredUnit& unit, Tensor sum);
  void clear(Tensor sum);  // zeros, at home

 private:
  void add_sum(const StoredUnit& unit, comm::Communicator& ranks, int64_t numel);
  // sum = this rank's shard of the sum of `terms`, or all of it where both are one tensor.
  void add_up(const StoredUnit& unit, comm::Communicator& ranks, Tensor sum, Tensor terms);

  Memory& memory_;
  StoreOptions options_;
  const GradientForm& form_;
  Stream& comm_;
  int64_t landing_numel_ = 0, wire_numel_ = 0;  // of the largest unit
  int64_t most_travelling_ = 0;
  Buffer wire_, travelling_;
  std::map<std::pair<const StoredUnit*, const comm::Communicator*>, Buffer> kept_;  // of the form, of a sum
  Buffer landing_;  // where kernels do not reach the gradients' home: on the way to it
  Trace* trace_ = nullptr;
  offload::HomeStream homes_;  // goes first: it finishes what was enqueued
};

}  // namespace cleave::zero
