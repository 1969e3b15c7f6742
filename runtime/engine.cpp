// How an engine is made: from a configuration to the parts that a rank has, planned before they are
// allocated.
#include "runtime/engine.h"

#include "runtime/disk_check.h"
#include "runtime/engine_state.h"

namespace cleave::runtime {
namespace {

ModelFactory factory_of(model::Model model) {
  return [model = std::make_shared<model::Model>(std::move(model))](const model::Axes& axes) {
    require(
        axes.tensor.size() == 1, Exit::usage,
        "tensor_parallel.autotp_size is {}, but the layers of {} are whole; give the engine a factory that "
        "cuts them (ModelFactory), or set the size to 1",
        axes.tensor.size(), model->name);
    require(axes.sequence.size() == 1, Exit::usage,
            "sequence_parallel_size is {}, but the sequences of {} are whole; give the engine a factory that "
            "cuts them (ModelFactory), or set the size to 1",
            axes.sequence.size(), model->name);
    return std::move(*model);
  };
}

// The model with what the configuration freezes.
model::Model made(const ModelFactory& make, const Settings& settings, const model::Axes& axes) {
  model::Model model = make(axes);
  if (settings.trains) model.freeze(settings.config.freeze);
  return model;
}

}  // namespace

Engine::State::State(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
                     const EngineOptions& o)
    : options(o),
      settings(make_settings(config, mesh_shape(config, world.size()), world.rank(), o)),
      streams(std::make_unique<Streams>(settings, o.compute, o.dry)),
      ranks(world, settings, streams->rows),
      model(made(make, settings, ranks.axes())),
      pipeline(ranks.cuts_layers() ? cut_pipeline(settings.config, made(make, settings, {}), settings.trains)
                                   : cut_pipeline(settings.config, model, settings.trains)),
      memory(o.limits, o.dry ? Memory::Mode::dry : Memory::Mode::real, o.device),
      scaler(config.precision == config::Precision::fp16 ? optim::LossScaler(config.fp16, config.zero.stage)
                                                         : optim::LossScaler()) {
  require(model.dtype == settings.dtype, Exit::usage,
          "{} was made in {}, but the configuration trains in {}; make it in model_dtype(config), or change "
          "fp16.enabled and bf16.enabled",
          model.name, name_of(model.dtype), name_of(settings.dtype));
  require(model.parts == settings.mesh.sequence, Exit::usage,
          "sequence_parallel_size is {}, but the sequences of {} are whole; set the size to 1",
          settings.mesh.sequence, model.name);
  ranks.tie(pipeline);
  notes.pipeline = pipeline.line, notes.graphs = settings.graphs_note;
}

void Engine::State::check_memory() {
  needs = needs_of(settings, model, pipeline, ranks);
  ranks.agree(
      *ranks.mesh().pipe, [&] { check_fits(needs.memory, options.limits); },
      [&](int stage) {
        return settings.mesh.pipe > 1 ? fmt::format("stage {} of the pipeline: ", stage) : "";
      });
}

void Engine::State::choose_update() {
  const config::OffloadConfig& offload = settings.config.zero.offload_optimizer;
  // "auto" is the host where there is no link.
  if (settings.config.offload_update != config::OffloadUpdate::automatic ||
      offload.device == config::OffloadDevice::none || settings.dry)
    return;
  if (!settings.device.is_cuda()) return;
  zero::UpdateRates rates;
  ranks.agree([&] {
    rates = zero::measure_update(*optim::make_optimizer(settings.config.optimizer), settings.device,
                                 offload.pin_memory ? MemoryKind::pinned : MemoryKind::host);
  });
  const zero::UpdateTimes times = zero::update_times(needs.update, rates);
  config::DsConfig chosen = settings.config;
  chosen.offload_update =
      times.device < times.host ? config::OffloadUpdate::device : config::OffloadUpdate::host;
  settings = make_settings(chosen, settings.mesh, ranks.world().rank(), options);
  notes.update = zero::describe_update(needs.update, rates);
  check_memory();  // the other side may need another amount
}

void Engine::State::allocate() {
  memory.expect(needs.memory);
  rank = std::make_unique<RankState>(settings, model, pipeline, ranks, *streams, memory);
  rank->saved->initialize(options.seed, streams->compute);
  streams->synchronize();
  if (rank->copy.defined() && !settings.dry)
    background = std::make_unique<checkpoint::BackgroundSave>(rank->copy, ranks.world());
  const tensor_parallel::TensorAxis& tensor = ranks.axes().tensor;
  if (options.texts > 0)
    texts.emplace(Texts::Limits{.each = options.texts,
                                .places = settings.mesh.sharers(),
                                .positions = model.rows_per_sample * model.parts,
                                .most_rows = rank->stage.text_rows(),
                                .multiple = tensor.cuts_rows() ? tensor.size() : 1});
  if (options.trace) {  // from here on
    streams->name_in(*options.trace);
    rank->show_in(*options.trace, streams->compute);
  }
  if (!settings.graphs) return;
  std::vector<Stream*> captured = {&streams->compute};
  if (settings.comm_overlaps) captured.push_back(&streams->overlapped);
  graphs = make_graphs(std::move(captured), *settings.graphs);
}

Engine::Engine(const config::DsConfig& config, model::Model model, comm::Communicator& world,
               const EngineOptions& options)
    : Engine(config, factory_of(std::move(model)), world, options) {}

Engine::Engine(const config::DsConfig& config, const ModelFactory& make, comm::Communicator& world,
               const EngineOptions& options)
    : state_(std::make_unique<State>(config, make, world, options)) {
  State& s = *state_;
  s.check_memory();
  s.choose_update();
  if (!options.dry) s.notes.disk = check_disks(s.settings, s.needs.memory, s.ranks);
  s.allocate();
}

Engine::~Engine() = default;

void Engine::synchronize() { state_->streams->synchronize(); }

}  // namespace cleave::runtime
