// Training engine: owns a rank's share of the model state and takes optimizer steps as configured by a
// ds_config. Partitioning, offload and overlap are values given to the components below; the step is the same
// for every configuration.
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
#include <span>
#include <string>
#include <vector>

#include "core/range.h"
#include "device/batch.h"
#include "runtime/engine_base.h"
#include "runtime/generation/text_part.h"

// Forward declarations keep these headers out of programs that include this one.
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

// Returns the model type required by the configuration.
DType model_dtype(const config::DsConfig& config);

// Makes a rank's part of the model when axes cut its layers or sequences. Also called with axes of one rank
// for properties of the whole model.
using ModelFactory = std::function<model::Model(const model::Axes& axes)>;

struct Evaluation {
  double loss = 0;      // mean over all targets; NaN without targets
  int64_t targets = 0;  // number of targets with a loss
  // Number of these targets with the largest logit at their class (the first class on ties); empty if the
  // head does not count hits (Head::counts_hits). Exact, and equal in every layout as long as rounding does
  // not change the largest logit.
  std::optional<int64_t> hits = {};

  // Returns the share of hits, or nothing without hits or targets. For next-token targets this is the token
  // accuracy.
  std::optional<double> accuracy() const;
};

class Engine : public EngineBase {
 public:
  // Collective over world; its ranks form a pipe x data x sequence x tensor grid: mesh_shape(config,
  // world.size()). Throws Error(usage) if the ranks or the model cannot be divided accordingly, and
  // Error(memory) with the category table if the plan exceeds options.limits, before any large allocation.
  Engine(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
         const EngineOptions& options);
  // For a model with whole layers. Throws Error(usage) if the configuration cuts layers.
  Engine(const config::DsConfig& config, model::Model model, comm::Communicator& world,
         const EngineOptions& options);

  // Takes one optimizer step over gradient_accumulation_steps micro-batches. Ranks at the same place on the
  // data axis must give the same micro-batches, with whole samples even if ranks share a sequence.
  // Collective; the result is equal on every rank. Throws Error(data), before any change, if no target of any
  // micro-batch has a loss. Throws Error(training) if the loss is not finite in fp32 or bf16, or if the loss
  // scale overflows at its minimum; the state is then the one before the step if state_is_whole().
  // `begins` is called with each micro-batch before its computation. The form with a source requests all
  // micro-batches first and keeps copies.
  StepResult train_batch(std::span<const Batch> batches, const std::function<void(int micro)>& begins = {});
  StepResult train_batch(const BatchSource& data);
  // The same step for micro-batches that arrive one by one, with unknown numbers of targets: begin_step,
  // train_micro_batch gradient_accumulation_steps times, finish_step. Micro-batches have equal weight,
  // whatever cleave.loss_average says. All are collective. Throws Error(usage) with several pipeline stages,
  // which compute micro-batches concurrently, and for a number of micro-batches that differs from the
  // configuration.
  void begin_step();
  double scale() const;  // factor of a micro-batch's loss before its gradients are taken
  // Runs forward and backward. Returns the loss of the micro-batch, equal on all ranks at its place on the
  // data axis: the sum over its targets divided by `items`, or by the number of targets if items is 0 (NaN
  // without targets). A micro-batch without targets adds no gradient. Throws Error(usage) unless all
  // micro-batches of a step give items, or none does.
  double train_micro_batch(const Batch& batch, double items = 0);
  // Makes the step's gradients those of each micro-batch's loss multiplied by `times`, averaged over
  // micro-batches and ranks. Call after train_micro_batch if times is not 1. Throws Error(usage) if an
  // earlier micro-batch of the step had another value, and finish_step throws it if another rank did.
  void use_loss(double times);
  // rates: required with EngineOptions::rates_given, otherwise not allowed.
  StepResult finish_step(std::span<const optim::Rates> rates = {});
  // `seen` is called in each train_batch after its last micro-batch, where gradient() and write_gradient()
  // are allowed; updates then wait for all gradients. On all ranks, between steps.
  void on_gradients(std::function<void()> seen);
  // Returns the whole gradient of the loss in fp32, averaged, without the loss scale and before clipping.
  // Call after the last micro-batch of a step and before finish_step, or in on_gradients. Throws Error(usage)
  // at other times and for an unknown or frozen parameter. Collective.
  std::vector<float> gradient(const std::string& name);
  // Overwrites the gradient at the same point: norm, clipping and update use the new values. All ranks give
  // the same values. Collective.
  void write_gradient(const std::string& name, std::span<const float> whole);
  // Returns the loss of a micro-batch as train_micro_batch does, without any change of state. May be called
  // between the micro-batches of a step. Collective.
  double loss_of(const Batch& batch);

  // Evaluates `micros` micro-batches per place on the data axis, without any change of state. Collective.
  // `stop` is called between micro-batches and must agree on all ranks; if it returns true, the evaluation
  // ends with no targets.
  Evaluation evaluate(const BatchSource& data, int micros, const std::function<bool()>& stop = {});

  // Returns the logits [rows, classes] of one micro-batch in host memory of every rank. Collective. `rows`:
  // only these rows (sample by sample, position by position), the same number on every rank. On a GPU the
  // engine keeps memory for the largest number of logits requested so far.
  std::vector<float> predict(const Batch& batch, std::optional<Range> rows = {});

  // Incremental generation: the engine keeps a KV cache for each text, so a token costs one row.
  int64_t texts() const;  // EngineOptions::texts times the ranks of the data and sequence axes
  // Returns the logits [parts, classes] after each part, in host memory of every rank. All ranks give the
  // same parts, with at most one part per text. Collective. Logits equal those of predict() for the whole
  // text up to rounding. Tokens are computed together only if every text has one. On a CPU a text has the
  // same bits alone as together with up to seven others on its rank.
  std::vector<float> extend(const std::vector<TextPart>& parts);

  // Returns the lasting part of a layer's state (model::LayerState) in host memory of every rank. Throws
  // Error(usage) for an unknown name, or if T (float or int64_t) is not its type. Collective.
  template <class T = float>
  std::vector<T> layer_state(const std::string& name);

  const model::Model& model() const;  // this rank's part of the layers
  int64_t samples_per_micro() const;
  double idle_share() const;  // expected idle share of the pipeline's ranks
  // Cost of each layer of the whole model in one micro-batch; the head is last. With axes that cut layers or
  // sequences, a rank does its share of it.
  const std::vector<pipeline::LayerCost>& layer_costs() const;
  double flops_per_sample() const;        // forward and backward of the whole model, without recomputation
  pipeline::Simulation timeline() const;  // recorded schedule of one step, in units of work
  int64_t frame_bytes() const;            // activation bytes per micro-batch in flight on this rank
  int layers_here() const;                // number of layers of this rank's pipeline stage

 private:
  struct State;
  State& state() const;
  void require_whole_gradients(const std::string& name);
};

}  // namespace cleave::runtime
