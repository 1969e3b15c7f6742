// What every engine is made of, whoever computes its passes: from a configuration to the state of a rank's
// units, planned before it is allocated, and the step around the passes. For the files of engines alone.
#pragma once
#include <functional>

#include "checkpoint/background_save.h"
#include "runtime/step/computation.h"
#include "runtime/step/rank_state.h"
#include "runtime/step/step_result.h"
#include "runtime/step/training_state.h"

namespace cleave::runtime {

// What a rank will allocate, and what of it an update of state off the device moves.
struct RankNeeds {
  MemoryTable memory;
  zero::UpdateBytes update;
};

struct EngineCore {
  EngineCore(const config::DsConfig& config, comm::Communicator& world, const EngineOptions& options);
  // An engine ends with streams.reset() before anything that their work uses.
  virtual ~EngineCore() = default;

  // Before start, when the ranks know the model: makes the groups of stages that share a unit. Collective.
  void set_units(RankUnits units);
  // Plans, measures, and allocates. Collective; Error(memory) with the category table on every rank of a pipe
  // when one of its stages does not fit.
  void start();
  // What computes with these units, in that memory; called once for the plan and once for real.
  virtual std::unique_ptr<Computation> computation(RankState& rank, Streams& streams,
                                                   Memory& memory) const = 0;

  // A step is begin_step, passes that visit units, finish_step.
  void begin_step();
  // All passes are enqueued. mean_loss: of all ranks, asked for once, behind the norm. rates: in place of the
  // schedule's, where nothing is updated before. Error(training) where training cannot go on. Collective; the
  // result is the same on every rank.
  StepResult finish_step(const std::function<double()>& mean_loss, std::span<const optim::Rates> rates = {});
  // Makes the sums that finish_step needs, behind the last pass of a step; finish_step does not make them
  // again. Collective.
  void sum_gradients();
  // The gradient of the loss, averaged over micro-batches and ranks, before clipping, behind the last pass of
  // a step. Error(usage) for a parameter that is frozen or that there is not. Collective.
  std::vector<float> whole_gradient(const std::string& name);
  // Overwrites that gradient, which the norm, clipping and the update are of from here on; every rank is
  // given the same. Error(usage) also where updates do not wait for all gradients. Collective.
  void write_whole_gradient(const std::string& name, std::span<const float> values);
  // The mean over micro-batches and the data axis of what ranks that report losses have; each is rounded
  // first where the form of gradients says so. `losses`: those of this rank's micro-batches, whose terms may
  // stand apart; none where it reports none. Collective.
  double mean_over_ranks(const std::vector<double>& losses);

  EngineOptions options;
  config::DsConfig config;  // of inference: without what only training has
  Settings settings;
  std::unique_ptr<Streams> streams;
  Ranks ranks;
  RankUnits units;
  RankNeeds needs;
  EngineNotes notes;
  Memory memory;
  std::unique_ptr<RankState> rank;
  std::unique_ptr<Computation> computes;
  Buffer state_copy;  // of what this rank saves, where that is written behind the training
  BufferLoan loan;
  std::unique_ptr<checkpoint::BackgroundSave>
      background;  // where checkpoints are written behind the training
  optim::LossScaler scaler;
  TrainingState at;
  // What the step that was begun will be, and its update with what is known before the norm.
  StepResult result;
  optim::StepArgs update;
  bool summed = false;  // the gradients of that step, over all ranks
  double uses = 1;  // gradients are of the loss that passes computed, times this, which is known behind them
  bool whole = true;  // false: a step that threw has updated some of the state

 private:
  RankNeeds dry_run() const;
  Buffer copy_of_state(RankState& of, Computation& with, Streams& on, Memory& in) const;
  void check_memory();
  // Where the configuration leaves open on which side offloaded state is updated: decides for this rank, from
  // rates that all ranks measure at once.
  void choose_update();
  void allocate();

  // What the sums have in them that the gradients of the loss have not, beside the average.
  double left_scale() const { return rank->store.gradient_form().left_scale(result.loss_scale) / uses; }
  int64_t trained_numel(const std::string& name) const;  // Error(usage) as whole_gradient
  // The squared norm of the gradients as they are, over all ranks; the same bits however the model is cut.
  double squared_norm();
  bool overflowed();  // whether the step must be skipped; Error(training) where training cannot go on
};

}  // namespace cleave::runtime
