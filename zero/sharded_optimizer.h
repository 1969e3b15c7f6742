// The optimizer's side of ZeRO: fp32 master weights and optimizer states of this rank's slices, in the home
// that the placement names, and the loop that updates them. It does not know which optimizer it runs, nor
// what a stage is.
#pragma once
#include <memory>
#include <vector>

#include "offload/placement.h"
#include "optim/optimizer.h"
#include "zero/host_update.h"
#include "zero/parameter_store.h"

namespace cleave {

class ShardedOptimizer {
 public:
  // After every unit was added to the store. Where the working copy is fp32 and shares the optimizer's home,
  // it is the master itself and no master is kept.
  ShardedOptimizer(Memory& memory, ParameterStore& store, std::unique_ptr<Optimizer> optimizer,
                   const Placement& placement);

  // Fills the masters (and through them the weights) with every parameter's initial values: functions of the
  // seed, the parameter's name and the element's index, the same at every stage and number of ranks. States
  // start at zero.
  void initialize(uint64_t seed, Stream& compute);

  // Squared norm of this rank's part of the reduced gradients, one partial sum a unit, into sums (fp64,
  // [units]). With exact sums: int64 [4 * units + 1], four words a unit (SumIntegerSquares) of squared
  // multiples of the grid, then the overflows. sums must be in the gradients' memory.
  void square_gradients(Tensor sums, Stream& compute);

  // Updates every unit and publishes it. args.step counts applied updates from 1.
  void step(const StepArgs& args, Stream& compute);

  // What a checkpoint saves: "master", then the optimizer's state names; each fp32 over store.slice(unit).
  std::vector<std::string> kinds() const;
  Tensor record(int unit, int kind) const;
  // After the records were overwritten (a resumed run): brings the masters to the working copy on every rank.
  void publish_masters(Stream& compute);

 private:
  struct State {
    Buffer master;  // undefined when the working copy is the master
    std::array<Buffer, 2> states;
  };
  Tensor master(int unit) const;
  void update(const UpdateSlice& slice, const StepArgs& args, Stream& compute);
  Stream& home(Stream& compute) { return host_ ? host_->stream() : compute; }  // where masters are written

  ParameterStore& store_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<State> state_;
  Buffer tile_;  // exact sums: a piece of the gradient as the update reads it
  HomeStream homes_;
  std::unique_ptr<HostUpdate> host_;  // where weights are on a GPU and the placement is in host memory
};

}  // namespace cleave
