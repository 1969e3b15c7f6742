// The other ranks of the job, as the engine talks to them: the groups that there are, what they agree on
// before anything is allocated, and what is added up where several axes meet.
#pragma once
#include <functional>

#include "comm/mesh.h"
#include "model/axes.h"
#include "runtime/step/settings.h"
#include "zero/parameter_store.h"

namespace cleave::runtime {

class Ranks {
 public:
  // Collective. `rows` is the stream of the tensor axis' movements, where they have one. World and stream
  // outlive this.
  Ranks(comm::Communicator& world, const Settings& settings, Stream& rows);
  // Collective: makes the groups that follow from the units, of stages that share one, and of ranks that have
  // the same parts of one which an axis inside the data axis cuts. Before any of them is used.
  void tie(const RankUnits& units);

  comm::Communicator& world() { return world_; }
  comm::Communicator& self() const { return *self_; }
  const comm::Mesh& mesh() const { return mesh_; }
  const model::Axes& axes() const { return axes_; }
  // That parameters are cut over.
  const std::vector<comm::CuttingAxis>& cutting() const { return cutting_; }
  bool cuts_layers() const { return axes_.tensor.size() * axes_.sequence.size() > 1; }  // or their sequences
  // The ranks of the pipe, for what goes up and what comes down.
  comm::Communicator& activations() const { return *activations_; }
  comm::Communicator& gradients() const { return *gradients_; }
  // Ranks that have the same of a unit, over which it is sharded and its gradients are summed: those of the
  // data axis or, where an axis inside it cuts the unit, those at the same place of that. Error(usage) for a
  // unit of which it cuts some parameters only.
  comm::Communicator& sharers(const UnitSpec& unit) const;
  // The near ranks of the data axis, where these gather parameters among themselves; else empty.
  zero::NearGroups near() const { return {near_.get(), across_.get()}; }
  // Those that shards travel in: the data axis and its parts.
  std::vector<comm::Communicator*> data_groups() const;

  // Collective: what moves between GPUs what these groups, those of the cutting axes and those of tied units
  // move in a step, opens what it needs for that.
  void open(std::vector<comm::Communicator*> groups) const;

  // All groups of more than one rank that this one talks in, each once.
  struct Group {
    RankGroup what;
    const comm::Communicator* ranks;
  };
  std::vector<Group> groups() const;

  // Collective over `group`: runs the check on every rank and throws the first one's Error on all; `where`
  // names that rank.
  void agree(comm::Communicator& group, const std::function<void()>& check,
             const std::function<std::string(int rank)>& where);
  // The same over the world: "found by rank 3: ".
  void agree(const std::function<void()>& check);
  // The text of each rank of a group, in their order. Collective over it.
  std::vector<std::string> texts(comm::Communicator& group, std::string mine);
  // Words of the host that ranks exchange before a GPU's stream can be used.
  void all_reduce_on_host(Tensor t, std::string_view what);
  void all_gather_on_host(Tensor full, Tensor shard, std::string_view what);

  // After the last micro-batch, on `stream`: adds up the gradients of each unit that several stages hold over
  // those stages, and over each cutting axis what of gradients is parts of a sum there.
  void sum_shared_gradients(zero::ParameterStore& store, Stream& stream);
  std::vector<bool> units_summed_late(
      const zero::ParameterStore& store) const;  // by unit: whether that changes them
  // Overwrites what all ranks that hold a unit have of something by what the first of them has. On the host.
  void take_first(const std::string& unit, Tensor of_first);
  // The sum over all ranks; `value` is on the host, and so is the result. No stream has to come to it.
  double sum(double value, std::string_view what);
  void sum(std::span<double> values, std::string_view what);  // of each
  // Partial sums over the ranks of the cutting axes and of the pipe, of which all but one have 0 there (or
  // not a number where one of several says so), added up in their order, which does not depend on the stages.
  double sum_in_order(std::vector<double> parts, std::string_view what);

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
