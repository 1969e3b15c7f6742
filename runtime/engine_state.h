// What an engine is made of; shared by the files that implement it.
#pragma once
#include "comm/device_group.h"
#include "comm/mesh.h"
#include "device/workspace.h"
#include "model/axes.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "runtime/engine.h"
#include "runtime/executor.h"
#include "runtime/pipeline_plan.h"
#include "runtime/training_state.h"
#include "zero/sharded_optimizer.h"
#include "zero/weight_loader.h"

namespace cleave {

// All that a rank allocates. Built twice: against a dry memory for the plan, then for real.
struct Allocation {
  Allocation(const DsConfig& config, const Model& model, const PipelinePlan& plan, const Mesh& mesh,
             const TensorAxis& axis, const NearGroups& near, Communicator& self, Memory& memory,
             Stream& compute, Stream& comm);

  ParameterStore store;
  Stage stage;
  std::unique_ptr<SavedState> state;
  ShardedOptimizer* optimizer = nullptr;  // which is `state`; none: nothing is trained
  Buffer squares, losses;
};

// Scratch of the streams of a CUDA rank.
struct Workspaces {
  Workspaces() = default;
  Workspaces(Memory& memory, bool overlap, bool rows_overlap)
      : compute(allocate_workspace(memory, kKernelScratch)),
        comm(overlap ? allocate_workspace(memory, kCopyScratch) : Workspace{}),
        rows(rows_overlap ? allocate_workspace(memory, kCopyScratch) : Workspace{}) {}
  Workspace compute, comm, rows;
};

// The buffers that collectives of these groups use, lent to what moves them between GPUs; ends when no stream
// uses them any more.
class BufferLoan {
 public:
  BufferLoan() = default;
  BufferLoan(std::vector<Communicator*> groups, const std::vector<Tensor>& buffers)
      : groups_(std::move(groups)) {
    for (Communicator* group : groups_)
      if (TransportAccess* own = group->transport()) own->lend(buffers);
  }
  BufferLoan(const BufferLoan&) = delete;
  BufferLoan& operator=(BufferLoan&& other) noexcept {
    std::swap(groups_, other.groups_);
    return *this;
  }
  ~BufferLoan() {
    for (Communicator* group : groups_)
      if (TransportAccess* own = group->transport()) own->take_back();
  }

 private:
  std::vector<Communicator*> groups_;
};

struct Engine::State {
  State(const DsConfig& config, const ModelFactory& make, Communicator& world, const EngineOptions& options);

  ShardedOptimizer& optimizer() const {
    CHECK(all->optimizer, "an engine made for inference neither trains nor saves");
    return *all->optimizer;
  }
  Stream& comm() { return config.zero.overlap_comm ? overlapped : compute; }
  // For what ranks tell each other before a GPU's stream was lent its workspace.
  Stream& early() { return comm().on_cuda() ? on_host : comm(); }
  void synchronize() { rows.synchronize(), compute.synchronize(), comm().synchronize(); }
  // A GPU works on its update while the host prepares the next step: events order all that lives there. What
  // lives in host memory or on disk is waited for.
  bool update_runs_on() const;
  bool speaks_for(int unit) const { return plan.speaks(mesh.place.pipe, all->store.layout(unit).name()); }
  void name_tracks();  // of the trace: this engine's streams
  void lend_buffers_of_store();
  NearGroups near_groups() const { return {near.get(), across.get()}; }
  PipeLinks links() const { return {*activations, *gradients}; }
  // That this engine talks in, each once, under what it is for.
  struct Talk {
    std::string name;
    const Communicator* ranks;
  };
  std::vector<Talk> groups() const;
  // Why this rank's passes cannot be CUDA graphs; empty when they can.
  std::string no_graphs() const;
  void use_graphs();
  // `planned` and `update_bytes`, from the code that allocates.
  void plan_memory();
  // Throws Error(memory) on every rank of a pipe when one of its stages does not fit: their plans differ.
  void check_plan();
  // Where the configuration leaves open on which side offloaded state is updated: decides for this rank, from
  // rates that all ranks measure at once. Returns whether the plan may have changed, alike on all ranks.
  bool choose_update();
  // Where optimizer state goes to disk: throws Error(usage) or Error(memory) on every rank when the folder of
  // one cannot be used, or what all ranks plan to keep on one file system is not free there. Measures the
  // disk.
  void check_disk();
  // Runs the check on every rank of the group and throws the first one's Error on all; `where` names the
  // rank.
  void agree(Communicator& ranks, const std::function<void()>& check,
             const std::function<std::string(int rank)>& where);
  // After the last micro-batch: the gradients of units that several stages hold are added up over them, and
  // the parts that the ranks of a tensor axis have of a whole parameter's gradient.
  void sum_shared_gradients();
  std::vector<bool> units_summed_late() const;  // by unit: whether this changes its gradients on any rank
  // Whether the update must know the norm of all gradients: to clip them, or to skip the step.
  bool norm_first() const;
  // Of the gradients as they are, over all ranks; the same bits however the model is cut.
  double squared_norm();
  std::vector<double> squares_of_units();  // of this rank's units, after the sum over the slices
  double sum_over_ranks(double value, std::string_view what);
  // Whether this rank's losses count: the last stage's, and once a tensor axis.
  bool reports_loss() const { return all->stage.shape().last && mesh.place.tensor == 0; }
  // Over the micro-batches of all ranks, of which these are this rank's; rounded first when sums are exact.
  double mean_of_losses(const std::vector<double>& losses);

  DsConfig config;
  Communicator& world;
  Mesh mesh;
  bool rows_overlap;
  Axes axes;
  Model model;
  PipelinePlan plan;  // of the whole model
  std::unique_ptr<Communicator> self, activations, gradients;
  std::unique_ptr<Communicator> near,
      across;  // of the data axis, where parameters are gathered among near ranks
  std::vector<std::pair<std::string, std::unique_ptr<Communicator>>> tied;  // units that this rank shares
  EngineOptions options;
  Memory memory;
  MemoryTable planned;
  UpdateBytes update_bytes;  // of state off the device
  EngineNotes notes;
  Workspaces spaces;
  std::unique_ptr<Allocation> all;
  BufferLoan loan;
  std::vector<bool> summed_late;  // units_summed_late(), of all->store
  Stream on_host;                 // inline
  Stream compute, overlapped;     // go first: they finish what was enqueued, also when a step was given up
  Stream rows;                    // where the tensor axis' movements run beside products
  std::unique_ptr<Graphs> graphs;
  LrSchedule schedule;
  LossScaler scaler;
  TrainingState at;
};

}  // namespace cleave
