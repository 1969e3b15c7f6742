// Optimizer part of ZeRO: fp32 master weights and optimizer states of this rank's slices in the home given by
// the placement, and the loop that updates their tiles. Units are updated as their gradients are complete, or
// after all are. Independent of the concrete optimizer and of the stage.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/placement.h"
#include "optim/optimizer.h"
#include "zero/gradient_user.h"
#include "zero/parameter_store.h"
#include "zero/saved_state.h"
#include "zero/staged_update.h"
#include "zero/state_home.h"
#include "zero/update_times.h"
#include "zero/weight_loader.h"
#include "zero/whole_parameters.h"

namespace cleave::zero {

class ShardedOptimizer final : public GradientUser, public SavedState {
 public:
  // Create after all units were added to the store. If the working copy is fp32 and shares the optimizer's
  // home, it is also the master and no separate master is kept. Frozen units have only the working copy,
  // which checkpoints save as their master. The ranks of `cutting` must outlive this object.
  ShardedOptimizer(Memory& memory, ParameterStore& store, std::unique_ptr<optim::Optimizer> optimizer,
                   const offload::Placement& placement, std::vector<comm::CuttingAxis> cutting);

  // Fills the masters, and through them the weights, with the initial value of every parameter: a function of
  // the seed, the parameter name and the element index, equal for all stages and numbers of ranks. States
  // start at zero.
  void initialize(uint64_t seed, Stream& compute) override;

  // Writes squared norms of each unit's reduced gradients, summed over the ranks that have slices of it, to
  // `sums`: one per part of ParameterStore::counted(), unit by unit, in the form of the gradients
  // (GradientForm::squares_numel). Their sum over the ranks of the cutting axes is the norm of the whole
  // model. `sums` must be in the memory of the gradients. Collective.
  void square_gradients(Tensor sums, Stream& compute);

  // A training step is begin_step, the store's passes with this object as the user of their gradients, and
  // finish_step; leave out finish_step to skip the step. State on disk is prefetched from the pass that
  // completes gradients. `ahead`: arguments of the update, if the update does not depend on all gradients. A
  // unit is then updated on compute as soon as its gradient is complete, during the backward pass.
  // late[unit]: excludes units with gradients that are not final then.
  void begin_step(const std::optional<optim::StepArgs>& ahead, std::vector<bool> late, Stream& compute);
  void expect(std::span<const int> units) override;
  void complete(int unit) override;
  // Updates the remaining units and publishes all. args.step counts applied updates from 1; a parameter that
  // missed some has a smaller step.
  void finish_step(const optim::StepArgs& args);

  // Update history of a parameter. A paused one keeps values and states, and misses each update.
  struct Updates {
    bool paused = false;
    int64_t missed = 0;
  };
  // By unit and parameter. Change it between steps, or before the first update of a step can run.
  Updates& updates(int unit, int parameter) { return history_[size_t(unit)][size_t(parameter)]; }

  std::vector<std::string> kinds() const override;
  void read(int unit, int kind, Range range, Tensor to, Stream& compute) override;
  void write(int unit, int kind, Range range, Tensor from, Stream& compute) override;
  void begin_masters(int unit, Stream& compute) override { frozen_weights_.begin_masters(unit, compute); }
  void publish_masters(Stream& compute) override;

  // Moves masters (kind 0) and states of slices on the device to host memory, where they stay until the next
  // step, publish or return_to_device. Call outside of a step. Checkpoints read them there.
  void leave_device(Range kinds, MemoryKind to, Stream& compute);
  void return_to_device(Stream& compute);

  // Traces updates off the device and their transfers; the trace must outlive this object.
  void show_in(Trace& trace, Stream& compute);

  // Returns the file of the state on disk, or null.
  const offload::DiskFile* file() const { return state_.file(); }
  UpdateBytes update_bytes() const;

 private:
  bool repeats_sums(int unit) const;
  using State = std::array<Tensor, StateHome::kMostKinds>;
  static std::vector<StateHome::Slice> slices_of(const ParameterStore& store);
  // Part of a unit's slice for one kernel call: a range of equal decay, or one parameter.
  struct KernelRange {
    Range range;
    bool decay;
    int param = -1;
    Updates history = {};
  };
  std::vector<KernelRange> kernel_ranges(int unit) const;
  // Place of the kernels: compute, or a staged update with operands in transit.
  struct Side {
    Buffer gradient;                       // a piece decoded for the update, if its form requires it
    std::unique_ptr<StagedUpdate> staged;  // null: on compute, which reaches all operands
    std::vector<Event> worked, done;       // by unit: its last staged kernels, and all its staged work
  };
  void add_sides(Memory& memory, const offload::Placement& placement);
  Side& side_of(const optim::UpdateSlice& slice);
  void begin_walk(Range read, Range write);
  void prepare(const optim::StepArgs& args);
  void visit(int unit, bool update, const optim::StepArgs& args, Stream& compute);
  // `ready`: the state of the slice is available.
  Event run(int unit, const optim::UpdateSlice& slice, const StagedUpdate::Kernels& kernels,
            const Event& ready, Stream& compute);
  void publish(int unit);
  // Walks over all units, gives masters their values and brings them to the ranks that hold the whole unit.
  using GiveValues = std::function<void(int unit, Range of_slice, Tensor master, Stream& stream)>;
  void publish_all(Range read, Range write, const GiveValues& give, Stream& compute);
  void fill(int unit, Range of_slice, Tensor master, uint64_t seed, Stream& stream) const;
  void fill_frozen(uint64_t seed, Stream& compute);
  void settle(Stream& compute);  // waits for all work on state
  Stream& second(Stream& compute) { return away_ ? away_->staged->stream() : compute; }

  ParameterStore& store_;
  const std::vector<comm::CuttingAxis> cutting_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  StateHome state_;
  std::vector<int> frozen_;
  WeightLoader frozen_weights_;
  offload::HomeStream homes_;
  std::unique_ptr<WholeParameters> whole_;  // if the optimizer has a prepare pass
  Side here_, host_, device_;               // their streams are destroyed first: they finish enqueued work
  Side* away_ = nullptr;                    // side for state off the device, if it is not `here_`

  std::vector<std::vector<Updates>> history_;  // by unit and parameter
  std::optional<optim::StepArgs> ahead_;       // arguments of the current step
  std::vector<bool> late_;
  Stream* compute_ = nullptr;
  std::vector<int> expected_, updated_;  // units in order; updated_ is the part already updated
  bool has_left_ = false;                // state is not on the device
  Trace* trace_ = nullptr;
};

}  // namespace cleave::zero
