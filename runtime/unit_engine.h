// An engine that is driven from outside: it owns a rank's share of the state of units, and whoever calls it
// computes with them, in an order that nobody has to know before. Sharding, offload, optimizers, loss scale,
// checkpoints and the plan are Engine's. The bits are those of an Engine whose layers give the same gradients
// where no rank departs from what was recorded, or sums are exact; elsewhere parts of a sum may be added in
// another order (zero/recorded_visits.h).
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
// Of a pipeline each rank declares what its own layers use, and walks the list of instructions() of its
// stage: a forward or backward is a pass, and what travels between them is sent and received here.
#pragma once
#include <optional>
#include <span>

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
  // How often a micro-batch gives one unit's gradient at most; exact sums leave room for so many.
  int gives = 1;
  // In place of the configuration's optimizer. It updates state where that lives, on the host where that is
  // not the device, and no update runs ahead of finish_step.
  std::optional<optim::OutsideUpdate> update = {};
  // What each stage of a pipeline declares, where ranks are only planned and so tell each other nothing.
  std::vector<std::vector<UnitSpec>> stages = {};
};

// What goes from a stage of a pipeline to its neighbour.
enum class Link : uint8_t { activation /* up */, gradient /* of an activation, down */ };
constexpr std::string_view name_of(Link link) {
  return link == Link::activation ? "activations" : "activation gradients";
}

class UnitEngine : public EngineBase {
 public:
  // Units are known by their indices in the list, and their parameters are whole: Error(usage) where the
  // configuration cuts layers or sequences or freezes by name, where two have one name, and where ranks of
  // one stage of a pipeline do not have the same. A unit that several stages have is summed over them.
  // Nothing is read of what concerns layers: recomputation, logits, CUDA graphs. Otherwise as Engine.
  // Collective.
  UnitEngine(const config::DsConfig& config, const std::string& name, const std::vector<UnitSpec>& units,
             comm::Communicator& world, const UnitOptions& options);
  ~UnitEngine();

  Stream& stream();  // where work on parameters and gradients is enqueued

  // Overwrites something of a unit by what the first of all ranks that have the unit has of it, in host
  // memory; unit -1: of the ranks with this one's layers. Collective over those ranks.
  void take_first(int unit, Tensor value);

  // The instructions of this rank's stage, for so many micro-batches of a step or of an evaluation, by the
  // configuration's schedule. A channel holds one message of each Link, so ranks that walk their lists never
  // wait for each other in a circle, as long as each instruction is one message.
  pipeline::InstructionList begin_walk(bool trains, int micros, bool shapes_change);
  // Contiguous memory, on stream(). The receiver knows the size.
  void send(Link link, Tensor what);
  void receive(Link link, Tensor what);
  // What the caller says of an activation, up to kShapeBytes, before it: it travels with a chunk's first one
  // of a walk, or with each where shapes change. Error(usage) where they do not, and one is another.
  static constexpr int64_t kShapeBytes = 4096;
  void send_shape(int chunk, const std::string& shape);
  std::string receive_shape(int chunk);

  // A step is begin_step, passes, finish_step, all three collective. Error(internal) in another order.
  // micros: over how many micro-batches of a rank this one averages; 0: as the configuration says.
  void begin_step(int micros = 0);
  // What the loss of a micro-batch, a mean, is multiplied with before its gradients are taken: the loss scale
  // and the average over micro-batches and ranks.
  double scale() const;
  // Whether the unit's parameters are elsewhere between uses. Those of others stay where acquire says, once
  // and for all, with the values of the last step.
  bool gathers(int unit) const;
  // A pass of a kind, a small number: what it visits is recorded, and foreseen in the next one. `last`:
  // gradient() may be asked behind it. One that gives no gradients may stand outside of a step. end_pass is
  // collective; between the two every rank may visit other units, in another order, or none.
  void begin_pass(int kind, bool last);
  void end_pass();
  // The unit's parameters, in the order of its specs, for work enqueued until release, which follows each
  // acquire. Error(memory) where they do not fit beside those in use.
  std::vector<Tensor> acquire(int unit);
  void release(int unit);
  // Where the unit's gradients go until give: added where GradientSlot::written says that something is there,
  // which whoever writes sets. Those of a frozen unit are empty. Error(internal) for more gives than
  // UnitOptions says, where sums are exact.
  std::vector<zero::GradientSlot> gradients(int unit);
  void give(int unit);
  // This pass gives the unit no more, so that its sum may be made before the pass ends.
  void complete(int unit);
  // The whole gradient of the loss in fp32, averaged over micro-batches and ranks, without the loss scale and
  // before clipping: behind a last pass and before finish_step; a pass that gives more then is an
  // Error(usage), as is gradient() elsewhere, or of a parameter that there is not or that is frozen.
  // Collective.
  std::vector<float> gradient(const std::string& name);
  // Overwrites it, there: the norm, clipping and the update are of what it is then. Every rank gives the
  // same. Error(usage) also where updates do not wait for all gradients, so that this one may be made
  // already. Collective.
  void write_gradient(const std::string& name, std::span<const float> whole);
  // losses: the mean of each of this rank's micro-batches, which the result has averaged over all ranks; of
  // another number of them than the configuration has, their mean counts as each of its.
  // rates: with EngineOptions::rates_given, and only then, of each UnitSpec::group, the same on all ranks;
  // the result has the first one's. Error(training) as Engine::train_batch.
  StepResult finish_step(std::span<const double> losses, std::span<const optim::Rates> rates = {});

  // Gathers and rounds of agreement that no record foresaw, since the start.
  int64_t unforeseen() const;

 private:
  struct State;
  State& state() const;
  void finish_gradients(const std::string& name);  // Error(usage) where `name` may not be asked for
};

}  // namespace runtime
}  // namespace cleave
