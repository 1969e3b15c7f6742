// Allocations of a rank for its units: parameters, gradients, optimizer state and scratch. The same code runs
// twice: on a dry memory for the plan, and then for real.
#pragma once
#include "comm/device_group.h"
#include "device/workspace.h"
#include "runtime/step/ranks.h"
#include "runtime/step/sharding_rule.h"
#include "zero/sharded_optimizer.h"
#include "zero/weight_loader.h"

namespace cleave::runtime {

// Streams of a rank. Unused ones exist, but cost nothing.
struct Streams {
  // `otherwise`: compute mode of a CPU rank. dry: no work is done.
  Streams(const Settings& settings, Stream::Mode otherwise, bool dry);

  Stream& comm() { return comm_overlaps ? overlapped : compute; }  // for collectives
  Stream& from_home() { return homes_overlap ? inward : comm(); }
  void synchronize() {
    rows.synchronize(), compute.synchronize(), comm().synchronize(), from_home().synchronize();
  }
  void name_in(Trace& trace) const;

  bool comm_overlaps, rows_overlap, homes_overlap;
  Stream compute;  // a new stream, or the one given to the engine
  Stream overlapped;
  Stream rows;    // for tensor-axis transfers that overlap matrix products
  Stream inward;  // for weights from host memory
};

// Scratch memory for the streams of a CUDA rank.
struct Workspaces {
  Workspaces(Memory& memory, Streams& streams, bool has_products);
  Workspace compute, comm, rows;
};

// Registers the memory of collectives of these groups with their GPU transports. Destroy it when no stream
// uses the memory any more.
class BufferLoan {
 public:
  BufferLoan() = default;
  BufferLoan(std::vector<comm::Communicator*> groups, const std::vector<Tensor>& buffers)
      : groups_(std::move(groups)) {
    for (comm::Communicator* group : groups_)
      if (comm::TransportAccess* own = group->transport()) own->lend(buffers);
  }
  BufferLoan(const BufferLoan&) = delete;
  BufferLoan& operator=(BufferLoan&& other) noexcept {
    std::swap(groups_, other.groups_);
    return *this;
  }
  ~BufferLoan() {
    for (comm::Communicator* group : groups_)
      if (comm::TransportAccess* own = group->transport()) own->take_back();
  }

 private:
  std::vector<comm::Communicator*> groups_;
};

// State of a rank's units, independent of the computation.
struct RankState {
  // All arguments must outlive this object, except that streams are destroyed first: they finish enqueued
  // work, also after an aborted step. The store has the rank's units in their order. Commit the store's
  // driver afterwards. Throws Error(memory) if the memory is too small.
  RankState(const Settings& settings, const RankUnits& units, const Ranks& ranks, Streams& streams,
            Memory& memory);

  // Only for training.
  zero::ShardedOptimizer& optimizer() const;
  // Returns true if this rank counts a unit of its store that several stages hold, in the norm and in
  // checkpoints.
  bool speaks_for(int unit) const { return units.speaks(pipe_rank, units.held[size_t(unit)]); }
  // Returns the squared gradient norm of each unit of the whole model, unscaled: the sum over the slices for
  // units that this rank counts, else 0. NaN if exact sums overflowed. Collective over the data axis; waits
  // for `compute`.
  std::vector<double> squared_gradients(Stream& compute);
  void show_in(Trace& trace, Stream& compute);

  const RankUnits& units;
  const int pipe_rank;
  // In construction order.
  Workspaces spaces;
  zero::ParameterStore store;
  std::unique_ptr<zero::SavedState> saved;
  zero::ShardedOptimizer* trained = nullptr;  // same object as `saved`; null: inference
  Buffer squares;                             // by unit
  std::vector<bool> summed_late;              // by unit: Ranks::units_summed_late
};

}  // namespace cleave::runtime
