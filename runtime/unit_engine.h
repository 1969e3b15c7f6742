// Engine driven from outside: it owns a rank's share of the state of units, and the caller computes with them
// in any order. Sharding, offload, optimizers, loss scale, checkpoints and the plan are those of Engine. The
// bits equal those of an Engine with layers that give the same gradients, if no rank departs from the record
// or sums are exact; otherwise parts of a sum may be added in another order (zero/recorded_visits.h).
//
//   UnitEngine engine(config, "mine", units, world, {});
//   engine.begin_step();
//   for (int micro = 0; micro < micros; ++micro) {
//     engine.begin_pass(0, micro + 1 == micros);
//     std::vector<Tensor> weights = engine.acquire(unit);   // any unit, any number of times
//     ...                                                   // enqueued on engine.stream()
//     engine.release(unit);
//     std::vector<zero::GradientSlot> slots = engine.gradients(unit);
//     ...                                                   // of the loss times engine.scale()
//     engine.give(unit), engine.complete(unit);
//     engine.end_pass();
//   }
//   StepResult r = engine.finish_step(losses);
//
// With a pipeline, each rank declares the units of its layers and walks the list of instructions of its
// stage (begin_walk): a forward or backward is a pass, and the engine sends and receives the messages between
// stages.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/param_spec.h"
#include "device/tensor.h"
#include "optim/optimizer.h"
#include "pipeline/schedule.h"
#include "runtime/engine_base.h"

namespace cleave {
namespace zero {
struct GradientSlot;  // zero/gradient_shards.h
}

namespace runtime {

struct UnitOptions {
  EngineOptions engine = {};
  // Maximum number of gradients per unit and micro-batch; exact sums reserve room for them.
  int gives = 1;
  // Replaces the configuration's optimizer. Updates state in its home, or on the host if that is not the
  // device. No update runs before finish_step.
  std::optional<optim::OutsideUpdate> update = {};
  // Units that each stage of a pipeline declares, for planned ranks, which cannot exchange them.
  std::vector<std::vector<UnitSpec>> stages = {};
};

// Message between neighboring pipeline stages.
enum class Link : uint8_t { activation /* up */, gradient /* of an activation, down */ };
constexpr std::string_view name_of(Link link) {
  return link == Link::activation ? "activations" : "activation gradients";
}

class UnitEngine : public EngineBase {
 public:
  // Units are identified by their index in the list. They declare whole parameters, with a split of one rank
  // for those that the tensor axis cuts: the engine then holds this rank's part, which acquire and gradients
  // have, and the caller adds what its passes need from other ranks of the axis. A frozen unit with word 1
  // has values of any type: the shapes of its parameters count 64-bit words. Throws Error(usage) if a split
  // cannot be divided, if the configuration cuts sequences, combines the tensor axis with a pipeline or
  // freezes by name, if two units share a name, or if ranks of one pipeline stage declare different units. A
  // unit that several stages declare is summed over them. Settings of layers are not read: recomputation,
  // logits, CUDA graphs. Otherwise as Engine. Collective.
  UnitEngine(const config::DsConfig& config, const std::string& name, const std::vector<UnitSpec>& units,
             comm::Communicator& world, const UnitOptions& options);
  ~UnitEngine();

  // Overwrites a host value of a unit by the value of the first rank that has the unit. Unit -1: over the
  // ranks with this rank's layers. Collective over these ranks.
  void take_first(int unit, Tensor value);

  // Returns the instructions of this rank's stage for `micros` micro-batches of a step or an evaluation, in
  // the configuration's schedule. A channel holds one message of each Link, so ranks that follow their lists
  // never deadlock, provided that each instruction is one message.
  pipeline::InstructionList begin_walk(bool trains, int micros, bool shapes_change);
  // Transfers contiguous memory on stream(). The receiver must know the size.
  void send(Link link, Tensor what);
  void receive(Link link, Tensor what);
  // Describes an activation in up to kShapeBytes, sent before it: with a chunk's first activation of a walk,
  // or with each one if shapes change. Throws Error(usage) if a shape changes unexpectedly.
  static constexpr int64_t kShapeBytes = 4096;
  void send_shape(int chunk, const std::string& shape);
  std::string receive_shape(int chunk);

  // A step is begin_step, passes, finish_step; all three are collective. Throws Error(internal) in another
  // order. micros: number of micro-batches per rank in the average of this step; 0: the configured number.
  void begin_step(int micros = 0);
  // Returns the factor of a micro-batch's mean loss before its gradients are taken: the loss scale and the
  // average over micro-batches and ranks.
  double scale() const;
  // Returns true if the unit's parameters are not on the device between uses. Other parameters keep the
  // address that acquire returns, with the values of the last step.
  bool gathers(int unit) const;
  // Begins a pass. `kind` is a small number that selects the record for prefetching. `last`: gradient() may
  // be called after this pass. A pass without gradients may run outside a step. end_pass is collective;
  // between the two, every rank may visit different units in any order, or none.
  void begin_pass(int kind, bool last);
  void end_pass();
  // Ends a pass that fails on this rank; end_pass throws Error(training) on the other data-parallel ranks.
  // The gradients of the step are incomplete afterwards: all ranks must call discard_gradients before others.
  void abandon_pass();
  // Returns the unit's parameters, in the order of its specs, for work enqueued until release, which must
  // follow each acquire. Throws Error(memory) if they do not fit together with the units in use.
  std::vector<Tensor> acquire(int unit);
  void release(int unit);
  // Returns the destinations of the unit's gradients until give. The writer adds if GradientSlot::written is
  // true, and sets the flag. Slots of a frozen unit are empty. Throws Error(usage) for more gives than
  // UnitOptions allows, if sums are exact.
  std::vector<zero::GradientSlot> gradients(int unit);
  void give(int unit);
  // Ends the unit's gradients in this pass, so its sum may run before the pass ends.
  void complete(int unit);
  // Returns the whole gradient of the loss in fp32, averaged over micro-batches and ranks, without the loss
  // scale and before clipping. Call after a last pass and before finish_step; later gradients then throw
  // Error(usage), as do calls at other times and unknown or frozen parameters. Collective.
  std::vector<float> gradient(const std::string& name);
  // Overwrites the gradient at the same point: norm, clipping and update use the new values. All ranks give
  // the same values. Also throws Error(usage) if updates do not wait for all gradients, because this one may
  // be applied already. Collective.
  void write_gradient(const std::string& name, std::span<const float> whole);
  // Returns the gradient of this rank's own loss in fp32, averaged over its micro-batches, without the loss
  // scale. Call between passes before the last one of a step; throws Error(usage) at other times, at stages 2
  // and 3, and for unknown or frozen parameters.
  std::vector<float> own_gradient(const std::string& name);
  // Forgets the gradients of the step so far, so that another pass may be its last. Call between passes,
  // before finish_step and queries of whole gradients; on all ranks at stages 2 and 3.
  void discard_gradients();
  // Makes updates of the next steps wait for finish_step, also if they need not know the norm first.
  void wait_with_updates(bool waits);
  // Gives every rank the whole gradients at the same point: averaged, without the loss scale, before
  // clipping. Norm, clipping and update use changes of them. Throws Error(usage) at stages 2 and 3, and for
  // sums that are not floating-point numbers in memory. Call only if updates wait. Collective.
  void show_gradients();
  // Returns the gradients of a unit after that, until finish_step; empty for a frozen unit.
  std::vector<Tensor> shown_gradients(int unit);
  // Makes updates leave these parameters and their optimizer state unchanged, as if they were frozen; their
  // bias correction counts no update. Replaces the previous list. Call outside of passes, and not after the
  // last pass of a step has begun; the same names on all ranks of a stage.
  void pause(std::span<const std::string> names);
  // Moves masters and optimizer states that are on the device to host memory, page-locked or not, and frees
  // theirs. They return with reload_states, the next step, and changes of weights. Reads, checkpoints and
  // passes outside of a step do not need them on the device. Throws Error(usage) inside a step and without an
  // optimizer, and Error(memory) if the host memory does not suffice.
  void offload_states(bool masters, bool states, bool pinned);
  void reload_states();
  // Returns the position of the training (steps, loss scale, missed updates) for another engine with the same
  // parameters, which then needs the states (parameter, write_parameter). `fresh`: trained parameters whose
  // optimizer state begins there. Collective.
  std::string position();
  void set_position(const std::string& position, std::span<const std::string> fresh);

  // losses: mean loss of each of this rank's micro-batches, equal on the ranks of a tensor axis; the result
  // has the average over all ranks. If
  // their number differs from the configuration, their mean counts for each configured micro-batch. rates:
  // required with EngineOptions::rates_given, otherwise not allowed; one per UnitSpec::group. Error(usage)
  // if they differ between ranks of a stage. The result has the first one. Throws Error(training) as
  // Engine::train_batch does.
  StepResult finish_step(std::span<const double> losses, std::span<const optim::Rates> rates = {});

  // Number of gathers and agreement rounds since the start that no record predicted.
  int64_t unforeseen() const;

 private:
  struct State;
  State& state() const;
  void finish_gradients(const std::string& name);  // throws Error(usage) if `name` is not accessible
};

}  // namespace runtime
}  // namespace cleave
