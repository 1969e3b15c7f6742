// Construction of layer engines.
#include "runtime/engine.h"

#include <algorithm>
#include <map>

#include "comm/device_group.h"
#include "device/copy.h"
#include "kernels/elementwise.h"
#include "runtime/engine_state.h"

namespace cleave::runtime {
namespace {

ModelFactory factory_of(model::Model model) {
  return [model = std::make_shared<model::Model>(std::move(model))](const model::Axes& axes) {
    require(axes.tensor.size() == 1, Exit::usage,
            "tensor_parallel.autotp_size: not supported by this model (got {}, but the layers of {} are "
            "whole); give the engine a factory that splits them (ModelFactory), or set the size to 1",
            axes.tensor.size(), model->name);
    require(axes.sequence.size() == 1, Exit::usage,
            "sequence_parallel_size: not supported by this model (got {}, but the sequences of {} are "
            "whole); give the engine a factory that splits them (ModelFactory), or set the size to 1",
            axes.sequence.size(), model->name);
    return std::move(*model);
  };
}

// Makes the model with the configured adapters and frozen parameters.
model::Model made(const ModelFactory& make, const EngineCore& core, const model::Axes& axes) {
  model::Model model = make(axes);
  const config::LoraConfig& lora = core.config.lora;
  model.attach(lora.targets, {lora.rank, float(lora.scale())});
  model.use_fp8(core.config.fp8);
  if (core.settings.trains) model.freeze(core.config.freeze);
  return model;
}

StageShape stage_shape(const Settings& s, const PipelineCut& pipeline) {
  StageShape shape = pipeline.stages[size_t(s.place.pipe)];
  shape.logits = s.logits, shape.texts = s.texts;
  return shape;
}

RankUnits rank_units(const model::Model& model, const PipelineCut& pipeline, int pipe_rank) {
  RankUnits units{.model = model.name, .all = model.units(), .holders = pipeline.holders, .held = {}};
  for (const UnitSpec& u : units_of(model, pipeline.stages[size_t(pipe_rank)]))
    units.held.push_back(pipeline.index_of(u.name));
  std::map<std::string, int> uses;
  const auto count = [&](const std::vector<UnitSpec>& used) {
    for (const UnitSpec& u : used) units.most_uses = std::max(units.most_uses, ++uses[u.name]);
  };
  for (const auto& layer : model.layers) count(layer->units());
  count(model.head->units());
  return units;
}

}  // namespace

MicroSums::MicroSums(Memory& memory, bool on_gpu, Shape shape, const char* name)
    : there_(memory.allocate(MemoryKind::device, Category::activations, DType::fp64, shape, name)) {
  if (on_gpu) here_ = memory.allocate(MemoryKind::pinned, Category::staging, DType::fp64, shape, name);
}

void MicroSums::fetch(Stream& compute) const {
  if (here_.defined()) copy(here_, there_, compute);
}

StageComputation::StageComputation(const model::Model& model, const PipelineCut& pipeline,
                                   const EngineCore& core, RankState& rank, Streams& streams, Memory& memory)
    : compute(streams.compute),
      comm(streams.comm()),
      rows{core.ranks.mesh().data},
      columns(*core.ranks.mesh().tensor),
      speaks(core.settings.place.tensor == 0 && core.ranks.mesh().data->rank() == 0),
      planned(memory, rank.store, streams.compute, streams.comm()),
      stage(model, stage_shape(core.settings, pipeline), planned, core.config.train_micro_batch_size_per_gpu,
            core.ranks.axes().tensor) {
  if (core.ranks.axes().tensor.cuts_rows()) rows.push_back(core.ranks.mesh().tensor);
  planned.commit();
  const auto of_micros = [&](int64_t each, const char* name) {
    return MicroSums(memory, core.settings.device.is_cuda(), {each, pipeline.evaluation.shape.micros}, name);
  };
  const int64_t side = std::count_if(model.layers.begin(), model.layers.end(),
                                     [](const auto& layer) { return layer->has_side_loss(); });
  if (side > 0) stage.put_side_losses(side_losses = of_micros(side, "side losses"));
  stage.allocate(memory, streams.compute);
  losses = of_micros(1, "losses"), hits = of_micros(1, "hits");
}

void StageComputation::begin_step() {
  stage.states().begin_step(compute);
  clear_side_losses();
}

void StageComputation::clear_side_losses() {
  if (side_losses.defined()) kernels::launch(kernels::Fill{.y = side_losses}, compute);
}

void StageComputation::fetch_losses() const { losses.fetch(compute), side_losses.fetch(compute); }

std::vector<checkpoint::Record> StageComputation::records(Whose whose) {
  if (whose == Whose::spoken_for && !speaks) return {};
  return stage.states().records(compute);
}

Engine::State::State(const config::DsConfig& c, const ModelFactory& make, comm::Communicator& world,
                     const EngineOptions& o)
    : EngineCore(c, world, o),
      model(made(make, *this, ranks.axes())),
      pipeline(ranks.cuts_layers() ? cut_pipeline(config, made(make, *this, {}), settings.trains)
                                   : cut_pipeline(config, model, settings.trains)) {
  require(model.dtype == settings.dtype, Exit::usage,
          "{} was made in {}, but the configuration trains in {}; make it in model_dtype(config), or change "
          "fp16.enabled and bf16.enabled",
          model.name, name_of(model.dtype), name_of(settings.dtype));
  require(model.parts == settings.mesh.sequence, Exit::usage,
          "sequence_parallel_size: not supported by this model (got {}, but the sequences of {} are whole); "
          "set the size to 1",
          settings.mesh.sequence, model.name);
  notes.pipeline = pipeline.line;
  set_units(rank_units(model, pipeline, settings.place.pipe));
}

void Engine::State::make_texts() {
  if (options.texts == 0) return;
  const tensor_parallel::TensorAxis& tensor = ranks.axes().tensor;
  texts.emplace(Texts::Limits{.each = options.texts,
                              .sharers = settings.mesh.sharers(),
                              .positions = model.rows_per_sample * model.parts,
                              .most_rows = layers().stage.text_rows(),
                              .multiple = tensor.cuts_rows() ? tensor.size() : 1});
}

void Engine::State::make_graphs() {
  if (!settings.graphs) return;
  std::vector<Stream*> captured = {&streams->compute};
  if (settings.comm_overlaps) captured.push_back(&streams->overlapped);
  graphs = cleave::make_graphs(std::move(captured), *settings.graphs);
}

Engine::Engine(const config::DsConfig& config, model::Model model, comm::Communicator& world,
               const EngineOptions& options)
    : Engine(config, factory_of(std::move(model)), world, options) {}

Engine::Engine(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
               const EngineOptions& options)
    : EngineBase(std::make_unique<State>(config, make, world, options)) {
  state().start();
  const Stage& stage = state().layers().stage;
  state().ranks.open_pipe(stage.bytes_to_others(), stage.bytes_from_others(), state().settings.trains);
  state().make_texts();
  state().make_graphs();
}

Engine::State& Engine::state() const { return static_cast<State&>(core()); }

const model::Model& Engine::model() const { return state().model; }
int64_t Engine::samples_per_micro() const { return state().config.train_micro_batch_size_per_gpu; }
double Engine::idle_share() const { return state().pipeline.idle_share; }
pipeline::Simulation Engine::timeline() const {
  const PipelineCut& pipeline = state().pipeline;
  return pipeline::simulate(pipeline.schedule,
                            {.work = pipeline.work, .splits = pipeline.splits, .record = true});
}
const std::vector<pipeline::LayerCost>& Engine::layer_costs() const { return state().pipeline.layers; }
double Engine::flops_per_sample() const {
  double sum = 0;
  for (const pipeline::LayerCost& layer : layer_costs()) sum += layer.flops;
  return sum / double(samples_per_micro());
}
int64_t Engine::frame_bytes() const { return state().layers().stage.frame_bytes(); }
int Engine::layers_here() const {
  int64_t layers = 0;
  for (const Range& chunk : state().layers().stage.shape().chunks) layers += chunk.size();
  return int(layers);
}

}  // namespace cleave::runtime
