// Communication of the engine with other ranks: groups, agreement before allocation, and sums over several
// axes.
#pragma once
#include <functional>

#include "comm/mesh.h"
#include "model/axes.h"
#include "runtime/step/settings.h"
#include "zero/parameter_store.h"

namespace cleave::runtime {

class Ranks {
 public:
  // Collective. `rows` is the stream of the tensor axis' transfers, if separate. World and stream must
  // outlive this object.
  Ranks(comm::Communicator& world, const Settings& settings, Stream& rows);
  // Makes the groups that depend on the units: stages that share a unit, and ranks with the same parts of a
  // unit that an axis inside the data axis cuts. Call before using them. Collective.
  void tie(const RankUnits& units);

  comm::Communicator& world() { return world_; }
  comm::Communicator& self() const { return *self_; }
  const comm::Mesh& mesh() const { return mesh_; }
  const model::Axes& axes() const { return axes_; }
  // Axes that cut parameters.
  const std::vector<comm::CuttingAxis>& cutting() const { return cutting_; }
  bool cuts_layers() const { return axes_.tensor.size() * axes_.sequence.size() > 1; }  // or their sequences
  // Returns the ranks of the pipe, for messages up and down.
  comm::Communicator& activations() const { return *activations_; }
  comm::Communicator& gradients() const { return *gradients_; }
  // Returns the ranks that share a unit's sharding and gradient sums: the data axis, or, if an axis inside it
  // cuts the unit, the ranks at the same place of that axis. Throws Error(usage) for a unit with only some
  // parameters cut by it.
  comm::Communicator& sharers(const UnitSpec& unit) const;
  // Returns the near ranks of the data axis, if they gather parameters among themselves; otherwise empty.
  zero::NearGroups near() const { return {near_.get(), across_.get()}; }
  // Returns the groups of shard transfers: the data axis and its parts.
  std::vector<comm::Communicator*> data_groups() const;

  // Opens the GPU transports of these groups, the cutting axes and the tied units for their messages in a
  // step. in_pieces: these groups gather in pieces. Collective.
  void open(std::span<comm::Communicator* const> groups, bool in_pieces) const;

  // Returns the bytes of this rank's GPU that the transport takes for the groups, outside of the plan.
  int64_t reserve() const;

  // Opens them for the messages of a pipeline, which have at most these bytes to the next stage and from the
  // one before, or none. Collective over the pipe.
  void open_pipe(int64_t to_next, int64_t from_before, bool gradients) const;

  // Returns each group of more than one rank that this rank communicates in, once.
  struct Group {
    RankGroup what;
    const comm::Communicator* ranks;
  };
  std::vector<Group> groups() const;

  // Runs the check on every rank and throws the first error on all of them; `where` names the failing rank.
  // Collective over `group`.
  void agree(comm::Communicator& group, const std::function<void()>& check,
             const std::function<std::string(int rank)>& where);
  // Like agree over the world, with the prefix "found by rank 3: ".
  void agree(const std::function<void()>& check);
  // Returns the text of each rank of a group, in rank order. Collective over the group.
  std::vector<std::string> texts(comm::Communicator& group, std::string mine);
  // Exchanges host values before a GPU stream is available.
  void all_reduce_on_host(Tensor t, std::string_view what);
  void all_gather_on_host(Tensor full, Tensor shard, std::string_view what);

  // After the last micro-batch, on `stream`: adds the gradients of each shared unit over its stages, and over
  // each cutting axis the gradients that are partial sums there.
  void sum_shared_gradients(zero::ParameterStore& store, Stream& stream);
  std::vector<bool> units_summed_late(
      const zero::ParameterStore& store) const;  // by unit: sum_shared_gradients changes it
  // Overwrites a host value on all ranks that hold a unit by the value of the first of them.
  void take_first(const std::string& unit, Tensor of_first);
  // Returns the sum over all ranks. Input and result are on the host; no stream is involved.
  double sum(double value, std::string_view what);
  void sum(std::span<double> values, std::string_view what);  // element by element
  // Adds partial sums over the ranks of the cutting axes and the pipe in an order that does not depend on the
  // stages. All ranks but one have 0 (or NaN, if one of several reports it).
  double sum_in_order(std::vector<double>& parts, std::string_view what);

 private:
  comm::Communicator& world_;
  const comm::Mesh mesh_;
  const model::Axes axes_;
  std::vector<comm::CuttingAxis> cutting_;
  const std::unique_ptr<comm::Communicator> self_, activations_, gradients_;
  std::unique_ptr<comm::Communicator> near_, across_, parts_;
  std::vector<std::pair<std::string, std::unique_ptr<comm::Communicator>>>
      tied_;        // units that this rank shares
  Stream on_host_;  // inline
};

}  // namespace cleave::runtime
