// The training engine: one object that owns a rank's share of a model's state and takes optimizer steps as a
// ds_config asks. Everything that partitions, offloads or overlaps is a value given to the parts below it;
// the step itself is the same for every configuration.
//
//   DsConfig config = ...;                             // config_schema/read_config.h
//   Engine engine(config, make_mlp({{64, 32, 10}}, DType::fp32), world, {});
//   Engine engine(config, [&](const Axes& a) { return make_model(kGpt2, sizes, type, seq, "gpt", a); }, ...);
//   for (int step = 0; step < 100; ++step)
//     StepResult r = engine.train_batch([&](int micro) { return my_batch(step, micro); });
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/range.h"
#include "device/batch.h"
#include "runtime/engine_base.h"
#include "runtime/generation/text_part.h"

// Declared here so that a program which includes this page compiles none of theirs.
namespace cleave {
namespace model {
struct Axes;   // model/axes.h
struct Model;  // model/layer.h
}  // namespace model
namespace pipeline {
struct LayerCost;   // pipeline/partition.h
struct Simulation;  // pipeline/simulate.h
}  // namespace pipeline
}  // namespace cleave

namespace cleave::runtime {

// The type that a model must be made in to be trained as the configuration says.
DType model_dtype(const config::DsConfig& config);

// A rank's part of the model when axes cut its layers or sequences. Also called with axes of one rank, for
// what concerns the whole model.
using ModelFactory = std::function<model::Model(const model::Axes& axes)>;

struct Evaluation {
  double loss = 0;      // mean over all targets; not a number where there are none
  int64_t targets = 0;  // that have a loss
  // The number of these whose class has the largest logit, of equal ones the first; none where the head does
  // not say so (Head::counts_hits). An exact count, the same in every layout where rounding leaves the
  // largest logit the largest.
  std::optional<int64_t> hits = {};

  // The share of hits; none where there are none to have or no targets. Where targets are the next tokens,
  // this is the token accuracy.
  std::optional<double> accuracy() const;
};

class Engine : public EngineBase {
 public:
  // Collective over world, whose ranks form a pipe x data x sequence x tensor grid: mesh_shape(config,
  // world.size()). Throws Error(usage) when the ranks or the model cannot be divided so, and Error(memory)
  // with the category table when the plan exceeds options.limits, before anything large is allocated.
  Engine(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
         const EngineOptions& options);
  // A model whose layers are whole; Error(usage) when the configuration cuts layers.
  Engine(const config::DsConfig& config, model::Model model, comm::Communicator& world,
         const EngineOptions& options);

  // One optimizer step over gradient_accumulation_steps micro-batches. Ranks of one place on the data axis
  // are given the same micro-batches, of whole samples also where ranks share a sequence. Collective. The
  // result is the same on every rank. Throws Error(data), before anything has changed, when no target of any
  // micro-batch has a loss, and Error(training) when the loss is not finite in fp32 or bf16, or
  // the loss scale is at its minimum and still overflows; the state is then that before the step, where
  // state_is_whole().
  StepResult train_batch(const BatchSource& data);
  // The same step where its micro-batches come one by one, and nobody knows how many targets the next one
  // has: begin_step, train_micro_batch gradient_accumulation_steps times, finish_step. Micro-batches count
  // alike, whatever cleave.loss_average says. All are collective. Error(usage) with several stages of a
  // pipeline, which compute micro-batches side by side, and for another number of them than the configuration
  // says.
  void begin_step();
  double scale() const;  // what a micro-batch's loss is multiplied with before its gradients are taken
  // Forward and backward. The loss of the micro-batch, the same on all ranks of its place on the data axis:
  // the sum over its targets divided by `items`, or by their own number where that is 0; then it is not a
  // number where there are none. Of no targets nothing is learned. All micro-batches of a step are given
  // items, or none is: Error(usage).
  double train_micro_batch(const Batch& batch, double items = 0);
  // The step's gradients are those of each micro-batch's loss times this, said behind its train_micro_batch
  // where it is not 1; the average over micro-batches and ranks is taken then. Error(usage) where another was
  // said of one before in the step, and in finish_step where another rank's is another.
  void use_loss(double times);
  // rates: with EngineOptions::rates_given, and only then.
  StepResult finish_step(std::span<const optim::Rates> rates = {});
  // The whole gradient of the loss in fp32, averaged, without the loss scale and before clipping: behind the
  // last micro-batch of a step and before finish_step. Error(usage) elsewhere, and for a parameter that is
  // frozen or that there is not. Collective.
  std::vector<float> gradient(const std::string& name);
  // Overwrites it, there: the norm, clipping and the update are of what it is then. Every rank gives the
  // same. Collective.
  void write_gradient(const std::string& name, std::span<const float> whole);
  // The loss of a micro-batch alone, as train_micro_batch says it; nothing is changed, and within a step it
  // may stand between two of them. Collective.
  double loss_of(const Batch& batch);

  // Evaluates `micros` micro-batches of every place on the data axis. Collective; nothing is changed. `stop`
  // is asked between micro-batches, on every rank alike; once it says so the evaluation ends, with no
  // targets.
  Evaluation evaluate(const BatchSource& data, int micros, const std::function<bool()>& stop = {});

  // Logits [rows, classes] of one micro-batch, in host memory of every rank; collective. `rows`: these of its
  // rows (sample by sample, position by position) only, in place of all; as many on every rank. On a GPU the
  // engine keeps the memory of the most logits that it was asked for.
  std::vector<float> predict(const Batch& batch, std::optional<Range> rows = {});

  // Texts that grow: the engine keeps the keys and values of their positions, so that a token costs one row.
  int64_t texts() const;  // EngineOptions::texts of every rank of the data and sequence axes
  // Logits [parts, classes] behind each part, in host memory of every rank, given the same parts everywhere;
  // of a text at most one. Collective. They are those of predict() for the whole text up to rounding. Tokens
  // are computed together only where each text has one; on a CPU a text has the same bits beside up to seven
  // others of its rank as alone.
  std::vector<float> extend(const std::vector<TextPart>& parts);

  // The lasting part of a layer's state (model::LayerState), in host memory of every rank. Error(usage) for a
  // name that there is not, and where T, float or int64_t, is not its type. Collective.
  template <class T = float>
  std::vector<T> layer_state(const std::string& name);

  const model::Model& model() const;  // this rank's part of its layers
  int64_t samples_per_micro() const;
  double idle_share() const;  // of the pipeline's ranks, expected
  // What each layer of the whole model costs in one micro-batch; the head is the last. With axes that cut
  // layers or sequences, a rank does its share of it.
  const std::vector<pipeline::LayerCost>& layer_costs() const;
  pipeline::Simulation timeline() const;  // of one step's schedule, recorded, in units of work
  int64_t frame_bytes() const;            // activations that a micro-batch in flight keeps on this rank

 private:
  struct State;
  State& state() const;
  void require_whole_gradients(const std::string& name);
};

}  // namespace cleave::runtime
