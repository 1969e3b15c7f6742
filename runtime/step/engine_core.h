// Common core of all engines: builds the state of a rank's units from a configuration, plans it before
// allocation, and runs the step around the passes. For source files of engines only.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/background_save.h"
#include "runtime/step/computation.h"
#include "runtime/step/pulse.h"
#include "runtime/step/rank_state.h"
#include "runtime/step/state_copier.h"
#include "runtime/step/step_result.h"
#include "runtime/step/training_state.h"

namespace cleave::runtime {

// Memory that a rank will allocate, and the data that an update of off-device state moves.
struct RankNeeds {
  MemoryTable memory;
  zero::UpdateBytes update;
};

struct EngineCore {
  EngineCore(const config::DsConfig& config, comm::Communicator& world, const EngineOptions& options);
  // Derived engines call streams.reset() first, before objects in use by the streams are destroyed.
  virtual ~EngineCore() = default;

  // Sets the units before start, when the ranks know the model: makes the groups of stages that share a unit.
  // Collective.
  void set_units(RankUnits units);
  // Plans, measures and allocates. Collective; if one stage does not fit, throws Error(memory) with the
  // category table on every rank of its pipe.
  void start();
  // Makes the computation on these units in that memory; called once for the plan and once for real.
  virtual std::unique_ptr<Computation> computation(RankState& rank, Streams& streams,
                                                   Memory& memory) const = 0;

  // Computes the forward of a micro-batch of the step on all ranks again. Returns a clause that names the
  // first layer with an output that is not finite, or an empty string. Collective.
  virtual std::string first_bad_layer(int64_t /*micro*/) { return ""; }

  // A step is begin_step, passes that visit units, finish_step.
  void begin_step();
  // Call after all passes are enqueued. mean_loss: returns the mean over all ranks; called once, after the
  // norm. rates: replace the schedule's, if no update runs before finish_step. Throws Error(training) if
  // training cannot continue. Collective; the result is equal on every rank.
  StepResult finish_step(const std::function<double()>& mean_loss, std::span<const optim::Rates> rates = {});
  // Computes the gradient sums that finish_step needs, after the last pass of a step; finish_step then reuses
  // them. Collective.
  void sum_gradients();
  // Returns the gradient of the loss, averaged over micro-batches and ranks, before clipping. Call after the
  // last pass of a step. Throws Error(usage) for an unknown or frozen parameter. Collective.
  std::vector<float> whole_gradient(const std::string& name);
  // Overwrites that gradient for the norm, clipping and the update. All ranks give the same values. Also
  // throws Error(usage) if updates do not wait for all gradients. Collective.
  void write_whole_gradient(const std::string& name, std::span<const float> values);
  // Returns the gradient of this rank's own loss in the passes of the step so far, averaged over its
  // micro-batches. Call before the last pass of a step. Error(usage) at stages 2 and 3.
  std::vector<float> own_gradient(const std::string& name);
  // Gives every rank the whole gradients (GradientShards::gather), averaged over micro-batches and ranks,
  // without the loss scale and before clipping. The update uses them with any change made before finish_step.
  // Call like whole_gradient. Error(usage) at stages 2 and 3, with exact or compressed sums, and if updates
  // do not wait for all gradients. Collective.
  void show_gradients();
  // Pauses these parameters of the rank's units and no others (ShardedOptimizer::Updates).
  void pause(std::span<const std::string> names);
  // Returns the position with the missed updates of all parameters. Collective over the pipe.
  TrainingState position();
  TrainingState own_position() const;  // with the missed updates of this rank's parameters
  optim::Rates next_rates() const;
  // Continues at a position. `fresh`: parameters whose optimizer state is new, so they missed all updates.
  void set_position(const TrainingState& to, std::span<const std::string> fresh = {});
  // Returns the mean over micro-batches and the data axis of the losses from reporting ranks, rounded first
  // if the gradient form requires it. `losses`: those of this rank's micro-batches, possibly as separate
  // terms; empty if the rank reports none. Collective.
  double mean_over_ranks(const std::vector<double>& losses);

  EngineOptions options;
  config::DsConfig config;  // for inference: without training settings
  Settings settings;
  std::unique_ptr<Streams> streams;
  Ranks ranks;
  RankUnits units;
  RankNeeds needs;
  EngineNotes notes;
  Memory memory;
  std::unique_ptr<RankState> rank;
  std::unique_ptr<Computation> computes;
  Buffer state_copy;  // copy of the state that this rank saves, for background saves
  BufferLoan loan;
  std::unique_ptr<checkpoint::BackgroundSave> background;  // if checkpoints are saved in the background
  std::unique_ptr<StateCopier> copier;                     // null: no copies
  std::string client_of_copies = "{}";                     // text of the caller that copies keep
  std::unique_ptr<Pulse> pulse;                            // null: nothing to compare, such as on one rank
  optim::LossScaler scaler;
  TrainingState at;
  std::optional<double> next_lr = {};  // replaces the scheduled learning rate of the next update
  std::vector<std::string> changed;    // settings that differ from the loaded checkpoint
  // Result of the current step, and its update with the values known before the norm.
  StepResult result;
  optim::StepArgs update;
  std::vector<double> unit_squares, own_losses;  // of that step: see FailedStep
  int64_t missed_steps = 0;  // bad steps that were skipped since the last update, or rolled back in total
  // Returns a clause that names the samples of a micro-batch, or of the whole step; empty: unknown.
  std::function<std::string(const std::optional<MicroPlace>& micro)> samples;
  bool summed = false;     // gradients of that step are summed over all ranks
  bool shown = false;      // and averaged and unscaled (show_gradients)
  bool may_pause = false;  // ranks compare their paused parameters in each step
  bool waits = false;      // updates wait for finish_step in addition to Settings::norm_first
  double uses = 1;         // factor of the loss that is known only after its passes (Engine::use_loss)
  bool whole = true;       // false: a step that threw has updated part of the state

 private:
  RankNeeds dry_run() const;
  Buffer copy_of_state(RankState& of, Computation& with, Streams& on, Memory& in) const;
  std::unique_ptr<StateCopier> copier_of(RankState& of, Computation& with, Memory& in) const;
  void check_memory();
  // Chooses the update side of offloaded state for this rank, if the configuration leaves it open, from rates
  // that all ranks measure at the same time.
  void choose_update();
  void allocate();

  // Returns the scale of the gradient sums relative to the gradients of the loss, without the average.
  double left_scale() const { return rank->store.gradient_form().left_scale(result.loss_scale) / uses; }
  // Returns the factor that makes the gradient sums averages without the loss scale.
  double unscaled() const { return shown ? 1 : settings.average.after / left_scale(); }
  bool updates_last() const { return settings.norm_first || waits; }
  // Returns the factor of the gradient sums for the update, which clips a norm above `clipping`.
  double factor_of_sums(double norm, double clipping) const;
  std::string paused_names() const;
  int64_t trained_numel(const std::string& name) const;  // throws Error(usage) as whole_gradient does
  // Returns the squared norm of the gradients as summed, over all ranks; the bits are equal for every cut of
  // the model.
  double squared_norm();
  std::string what_is_not_finite();  // of the step, for messages; collective
  std::string with_samples(std::string text, const std::optional<MicroPlace>& micro) const;
  bool spikes();  // as overflowed(), for a finite step
  void remember_loss();
  // Leaves out a bad step as settings.most_missed allows: returns true, or throws Error(training).
  bool leave_out(const std::string& what);
  bool overflowed();  // returns true if the step must be skipped; throws Error(training) if training cannot
                      // continue
};

}  // namespace cleave::runtime
