// The optimizer's side of ZeRO: fp32 master weights and optimizer states of this rank's slices, in the home
// that the placement names, and the loop over their tiles that updates them, unit by unit as gradients are
// complete or after all are. It does not know which optimizer it runs, nor what a stage is.
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
  // After every unit was added to the store. Where the working copy is fp32 and shares the optimizer's home,
  // it is the master itself and no master is kept. Of frozen units there is nothing but the working copy,
  // which is their master to checkpoints. The ranks of `cutting` outlive this.
  ShardedOptimizer(Memory& memory, ParameterStore& store, std::unique_ptr<optim::Optimizer> optimizer,
                   const offload::Placement& placement, std::vector<comm::CuttingAxis> cutting);

  // Fills the masters (and through them the weights) with every parameter's initial values: functions of the
  // seed, the parameter's name and the element's index, the same at every stage and number of ranks. States
  // start at zero.
  void initialize(uint64_t seed, Stream& compute) override;

  // Squared norms of each unit's reduced gradients, over the ranks that have slices of it, into sums: one of
  // each part that ParameterStore::counted() has, unit by unit, in the form of the gradients
  // (GradientForm::squares_numel), which added up over the ranks of the cutting axes are those of the whole.
  // sums must be in the gradients' memory. Collective.
  void square_gradients(Tensor sums, Stream& compute);

  // One training step: begin_step, the store's passes with this object as the user of their gradients, and
  // finish_step, or nothing where the step is skipped. State on disk is read ahead from the pass on that
  // completes gradients. `ahead`: the update's arguments, where it needs to know nothing of all gradients;
  // then a unit is updated on compute as soon as its own is complete, while the backward goes on. late[unit]:
  // not these, their gradients are not final at that time.
  void begin_step(const std::optional<optim::StepArgs>& ahead, std::vector<bool> late, Stream& compute);
  void expect(std::span<const int> units) override;
  void complete(int unit) override;
  // Updates the units that were not yet and publishes all. args.step counts applied updates from 1.
  void finish_step(const optim::StepArgs& args);

  std::vector<std::string> kinds() const override;
  void read(int unit, int kind, Range range, Tensor to, Stream& compute) override;
  void write(int unit, int kind, Range range, Tensor from, Stream& compute) override;
  void begin_masters(int unit, Stream& compute) override { frozen_weights_.begin_masters(unit, compute); }
  void publish_masters(Stream& compute) override;

  // Updates off the device, with what moves for them; the trace outlives this.
  void show_in(Trace& trace, Stream& compute);

  // The file of the state that lives on disk; none: nothing does.
  const offload::DiskFile* file() const { return state_.file(); }
  UpdateBytes update_bytes() const;

 private:
  bool repeats_sums(int unit) const;
  using State = std::array<Tensor, StateHome::kMostKinds>;
  static std::vector<StateHome::Slice> slices_of(const ParameterStore& store);
  // What kernels are given at once: parts of a unit's slice of equal decay, or of one parameter each.
  struct KernelRange {
    Range range;
    bool decay;
    int param = -1;
  };
  std::vector<KernelRange> kernel_ranges(int unit) const;
  // Where kernels run: on compute, or with operands on their way.
  struct Side {
    Buffer gradient;                       // a piece of it as the update reads it, where its form is another
    std::unique_ptr<StagedUpdate> staged;  // none: on compute, which reaches everything
    std::vector<Event> worked, done;  // by unit: the last staged kernels of it, and all staged work on it
  };
  void add_sides(Memory& memory, const offload::Placement& placement);
  Side& side_of(const optim::UpdateSlice& slice);
  void begin_walk(Range read, Range write);
  void prepare(const optim::StepArgs& args);
  void visit(int unit, bool update, const optim::StepArgs& args, Stream& compute);
  // `ready`: the slice's state is there.
  Event run(int unit, const optim::UpdateSlice& slice, const StagedUpdate::Kernels& kernels,
            const Event& ready, Stream& compute);
  void publish(int unit);
  // A walk over all units that gives masters values and brings them to the ranks that hold the whole.
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
  std::unique_ptr<WholeParameters> whole_;  // where the optimizer prepares
  Side here_, host_, device_;               // their streams go first: they finish what was enqueued
  Side* away_ = nullptr;                    // of state off the device, where that is not `here_`

  std::optional<optim::StepArgs> ahead_;  // of the step that is under way
  std::vector<bool> late_;
  Stream* compute_ = nullptr;
  std::vector<int> expected_, updated_;  // units, in order; of them: those that were updated
  Trace* trace_ = nullptr;
};

}  // namespace cleave::zero
