// What a rank allocates for its units: parameters, gradients, optimizer state and scratch. Built twice by the
// same code: against a dry memory, which gives the plan, and then for real.
#pragma once
#include "comm/device_group.h"
#include "device/workspace.h"
#include "runtime/step/ranks.h"
#include "runtime/step/sharding_rule.h"
#include "zero/sharded_optimizer.h"
#include "zero/weight_loader.h"

namespace cleave::runtime {

// A rank's streams. One that no option asks for exists, and costs nothing while nothing is given to it.
struct Streams {
  // `otherwise`: how a CPU rank computes. Dry: nothing is done.
  Streams(const Settings& settings, Stream::Mode otherwise, bool dry);

  Stream& comm() { return comm_overlaps ? overlapped : compute; }  // for collectives
  void synchronize() { rows.synchronize(), compute.synchronize(), comm().synchronize(); }
  void name_in(Trace& trace) const;

  bool comm_overlaps, rows_overlap;
  Stream compute;  // of its own, or the one that the engine was given
  Stream overlapped;
  Stream rows;  // where the tensor axis' movements run beside products
};

// Scratch of the streams of a CUDA rank, lent to them.
struct Workspaces {
  Workspaces(Memory& memory, Streams& streams);
  Workspace compute, comm, rows;
};

// Memory that collectives of these groups use, lent to what moves it between GPUs; ends when no stream uses
// it any more.
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

// The state of a rank's units, whoever computes with them.
struct RankState {
  // Everything given outlives this, but the streams end first: they finish what was enqueued, also when a
  // step was given up. Units of the store are those that the rank holds, in that order. The driver of the
  // store is committed behind it. Error(memory) where there is too little.
  RankState(const Settings& settings, const RankUnits& units, const Ranks& ranks, Streams& streams,
            Memory& memory);

  // Only where something is trained.
  zero::ShardedOptimizer& optimizer() const;
  // Whether this rank speaks for a unit of its store that several stages hold: in the norm and in
  // checkpoints.
  bool speaks_for(int unit) const { return units.speaks(pipe_rank, units.held[size_t(unit)]); }
  // For each unit of the whole model the squares of its gradients as they are: the sum over the slices of
  // those that this rank speaks for, else 0. Not a number where exact sums overflowed. Collective over the
  // data axis; waits for `compute`.
  std::vector<double> squared_gradients(Stream& compute);
  void show_in(Trace& trace, Stream& compute);

  const RankUnits& units;
  const int pipe_rank;
  // In the order in which they are made.
  Workspaces spaces;
  zero::ParameterStore store;
  std::unique_ptr<zero::SavedState> saved;
  zero::ShardedOptimizer* trained = nullptr;  // which is `saved`; none: nothing is trained
  Buffer squares;                             // of units
  std::vector<bool> summed_late;              // by unit: Ranks::units_summed_late
};

}  // namespace cleave::runtime
