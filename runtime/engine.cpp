#include "runtime/engine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "checkpoint/background_save.h"
#include "comm/together.h"
#include "device/copy.h"
#include "optim/clipping.h"
#include "runtime/disk_check.h"
#include "runtime/save_weights.h"
#include "runtime/state_records.h"
#include "runtime/texts.h"
#include "runtime/training_state.h"

namespace cleave {
namespace {

ModelFactory factory_of(Model model) {
  return [model = std::make_shared<Model>(std::move(model))](const Axes& axes) {
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

bool holds_weights_alone(const CheckpointReader& reader) {
  const auto& tensors = reader.manifest().tensors;
  return std::all_of(tensors.begin(), tensors.end(), [](auto& t) { return t.first.first == "master"; });
}

// Refuses a checkpoint that lacks a kind of state, before anything is overwritten.
void require_kinds(const CheckpointReader& reader, const std::vector<std::string>& wanted) {
  std::set<std::string> stored;
  for (const auto& [name, whole] : reader.manifest().tensors) stored.insert(name.first);
  const bool all =
      std::all_of(wanted.begin(), wanted.end(), [&](auto& kind) { return stored.contains(kind); });
  require(all, Exit::checkpoint,
          "{} holds {}, and this run's optimizer wants {}: it was trained with another one. Train with that, "
          "or begin the optimizer anew from these weights: --reset_optimizer",
          reader.path().string(), fmt::join(stored, ", "), fmt::join(wanted, ", "));
}

}  // namespace

std::vector<std::string> EngineNotes::lines() const {
  std::vector<std::string> out{pipeline, disk, update, graphs};
  std::erase_if(out, [](const std::string& text) { return text.empty(); });
  return out;
}

struct Engine::State {
  State(const DsConfig& config, const ModelFactory& make, Communicator& world, const EngineOptions& options);
  // Streams end first: they finish what was enqueued, also when a step was given up.
  ~State() { background.reset(), graphs.reset(), streams.reset(); }

  // Throws Error(memory) on every rank of a pipe when one of its stages does not fit: their plans differ.
  void check_memory();
  // Where the configuration leaves open on which side offloaded state is updated: decides for this rank, from
  // rates that all ranks measure at once.
  void choose_update();
  void allocate();

  // Of the gradients as they are, over all ranks; the same bits however the model is cut.
  double squared_norm();
  // Whether this rank's losses count: the last stage's, and once a tensor axis.
  bool reports_loss() const { return rank->stage.shape().last && settings.place.tensor == 0; }
  // Over the micro-batches of all ranks, of which this rank's have so many valid targets each; rounded first
  // when sums are exact.
  double mean_loss(const std::vector<double>& valid);
  bool overflowed(double loss, double norm);
  void run_training(const Work& work);  // all micro-batches; gradients are complete behind it
  void run_forward(const ScheduleShape& shape, const Work& work);
  // Of the only micro-batch, `logits` on the last stage: [rows.size(), the head's columns] in host memory.
  void run_logits(Work work, const Tensor& logits, Range rows);

  EngineOptions options;
  Settings settings;
  std::unique_ptr<Streams> streams;
  Ranks ranks;
  Model model;
  PipelineCut pipeline;  // of the whole model
  RankNeeds needs;
  EngineNotes notes;
  Memory memory;
  std::unique_ptr<RankState> rank;
  std::unique_ptr<Graphs> graphs;
  std::unique_ptr<BackgroundSave> background;  // where checkpoints are written behind the training
  LossScaler scaler;
  TrainingState at;
  std::optional<Texts> texts;
  bool whole = true;  // false: a step that threw has updated some of the state
};

Engine::State::State(const DsConfig& config, const ModelFactory& make, Communicator& world,
                     const EngineOptions& o)
    : options(o),
      settings(make_settings(config, mesh_shape(config, world.size()), world.rank(), o)),
      streams(std::make_unique<Streams>(settings, o.compute, o.dry)),
      ranks(world, settings, streams->rows),
      model(make(ranks.axes())),
      pipeline(ranks.cuts_layers() ? cut_pipeline(settings.config, make(Axes()), settings.trains)
                                   : cut_pipeline(settings.config, model, settings.trains)),
      memory(o.limits, o.dry ? Memory::Mode::dry : Memory::Mode::real, o.device),
      scaler(config.precision == Precision::fp16 ? LossScaler(config.fp16, config.zero.stage)
                                                 : LossScaler()) {
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
  const OffloadConfig& offload = settings.config.zero.offload_optimizer;
  // "auto" is the host where there is no link.
  if (settings.config.offload_update != OffloadUpdate::automatic || offload.device == OffloadDevice::none ||
      settings.dry)
    return;
  if (!settings.device.is_cuda()) return;
  UpdateRates rates;
  ranks.agree([&] {
    rates = measure_update(*make_optimizer(settings.config.optimizer), settings.device,
                           offload.pin_memory ? MemoryKind::pinned : MemoryKind::host);
  });
  const UpdateTimes times = update_times(needs.update, rates);
  DsConfig chosen = settings.config;
  chosen.offload_update = times.device < times.host ? OffloadUpdate::device : OffloadUpdate::host;
  settings = make_settings(chosen, settings.mesh, ranks.world().rank(), options);
  notes.update = describe_update(needs.update, rates);
  check_memory();  // the other side may need another amount
}

void Engine::State::allocate() {
  memory.expect(needs.memory);
  rank = std::make_unique<RankState>(settings, model, pipeline, ranks, *streams, memory);
  rank->saved->initialize(options.seed, streams->compute);
  streams->synchronize();
  if (rank->copy.defined() && !settings.dry)
    background = std::make_unique<BackgroundSave>(rank->copy, ranks.world());
  const TensorAxis& tensor = ranks.axes().tensor;
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

Engine::Engine(const DsConfig& config, Model model, Communicator& world, const EngineOptions& options)
    : Engine(config, factory_of(std::move(model)), world, options) {}

Engine::Engine(const DsConfig& config, const ModelFactory& make, Communicator& world,
               const EngineOptions& options)
    : state_(std::make_unique<State>(config, make, world, options)) {
  State& s = *state_;
  s.check_memory();
  s.choose_update();
  if (!options.dry) s.notes.disk = check_disks(s.settings, s.needs.memory, s.ranks);
  s.allocate();
}

Engine::~Engine() = default;

StepResult Engine::train_batch(const BatchSource& data) {
  State& s = *state_;
  const DsConfig& c = s.settings.config;
  const Averaging& average = s.settings.average;
  Stream& compute = s.streams->compute;
  ShardedOptimizer& optimizer = s.rank->optimizer();
  const double loss_scale = s.scaler.scale();
  // Exact sums take the loss scale out of every contribution, others out of the sum.
  const double left_scale = c.exact_sums ? 1 : loss_scale;
  std::vector<double> valid(size_t(c.gradient_accumulation_steps), 1);
  const Work work{
      .batch =
          [&](int micro) {
            Batch batch = data(micro);
            batch.position.seed = s.options.seed, batch.position.step = s.at.step;
            valid[size_t(micro)] = double(std::max<int64_t>(1, batch.valid_targets));
            return batch;
          },
      .scale = [&](int micro) { return float(loss_scale * average.before / valid[size_t(micro)]); },
      .losses = s.rank->losses};
  const Rates rates = s.settings.schedule.at(s.at.applied);
  StepArgs update{.lr = rates.lr,
                  .momentum = rates.momentum,
                  .beta2 = rates.beta2,
                  .grad_scale = average.after * gradient_factor(left_scale, 0, 0),
                  .step = s.at.applied - s.at.optimizer_begin + 1};
  optimizer.begin_step(s.settings.norm_first ? std::nullopt : std::optional(update), s.rank->summed_late,
                       compute);
  s.rank->store.begin_step(left_scale / loss_scale, &optimizer);
  s.run_training(work);
  const double norm = std::sqrt(s.squared_norm()) * average.after / left_scale;
  const double loss = s.mean_loss(valid);

  StepResult result{.step = ++s.at.step, .loss = loss, .grad_norm = norm, .loss_scale = loss_scale};
  result.lr = rates.lr;
  try {
    result.skipped = s.overflowed(loss, norm);
  } catch (const Error&) {
    --s.at.step;
    s.whole = s.settings.norm_first;
    throw;
  }
  if (result.skipped) {
    ++s.at.skipped;
  } else {
    const TraceSpan seen(s.options.trace, compute, "step", "update");
    ++s.at.applied;
    update.grad_scale = average.after * gradient_factor(left_scale, norm, c.gradient_clipping);
    optimizer.finish_step(update);
    if (!s.settings.update_runs_on) s.streams->synchronize();
  }
  if (s.options.trace && s.options.trace->on()) s.streams->synchronize(), s.options.trace->end_step();
  result.skipped_total = s.at.skipped;
  return result;
}

void Engine::State::run_training(const Work& work) {
  Stream &compute = streams->compute, &comm = streams->comm();
  Executor(rank->stage, ranks.links(), compute, comm, options.trace, graphs.get())
      .run(pipeline.schedule.ranks[size_t(settings.place.pipe)], pipeline.schedule.shape, work);
  comm.wait(compute.record());
  ranks.sum_shared_gradients(rank->store, comm);
  compute.wait(comm.record());
  rank->store.wait_for_gradients();
  streams->rows.synchronize();  // what went wrong there
}

double Engine::State::squared_norm() {
  const std::vector<double> mine = rank->squares_of_units(streams->compute);
  // One place a unit of the model, so that the sum has one order wherever the pipe is cut; a unit that
  // several stages hold counts on one of them, and what all ranks of a tensor axis hold on its first.
  std::vector<double> squares(pipeline.units.size(), 0);
  for (int u = 0; u < rank->store.units(); ++u)
    if (rank->speaks_for(u) || std::isnan(mine[size_t(u)]))
      squares[size_t(pipeline.index_of(rank->store.layout(u).name()))] = mine[size_t(u)];
  return ranks.sum_in_order(std::move(squares), "squared gradient norm", streams->comm());
}

double Engine::State::mean_loss(const std::vector<double>& valid) {
  std::vector<double> losses;
  if (reports_loss()) {
    losses = to_host<double>(rank->losses, streams->compute);
    losses.resize(valid.size());
    for (size_t micro = 0; micro < valid.size(); ++micro) losses[micro] /= valid[micro];
  }
  const double micros = double(settings.config.gradient_accumulation_steps);
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  Stream& comm = streams->comm();
  if (!settings.config.exact_sums) return ranks.sum(sum / micros, "loss", comm) / settings.mesh.data;
  constexpr double kGrid = 0x1p40;
  const double limit = 0x1p62 / (micros * ranks.mesh().data->size());
  int64_t words[2] = {0, 0};  // multiples of 1 / kGrid, and how many losses are too large or not finite
  for (const double loss : losses)
    if (std::fabs(loss * kGrid) <= limit)
      words[0] += int64_t(std::nearbyint(loss * kGrid));
    else
      ++words[1];
  ranks.world().all_reduce(Tensor(words, DType::int64, {2}, MemoryKind::host), comm, {.what = "loss"});
  comm.synchronize();
  return words[1] > 0 ? std::nan("") : double(words[0]) / kGrid / (micros * settings.mesh.data);
}

// Whether this step must be skipped. The norm is already summed over the ranks, so every rank answers alike.
bool Engine::State::overflowed(double loss, double norm) {
  const DsConfig& c = settings.config;
  const bool finite = std::isfinite(norm);
  if (c.precision == Precision::fp16) {
    require(scaler.update(!finite) == LossScaler::Update::ok, Exit::training,
            "step {}: the gradients overflow in fp16 and the loss scale is at its minimum of {}; lower the "
            "learning rate, or use bf16",
            at.step, scaler.scale());
    return !finite;
  }
  const bool may_skip = c.precision == Precision::bf16 && c.check_grad_overflow && std::isfinite(loss);
  require(finite || may_skip, Exit::training,
          "step {}: the loss is {} and the gradient norm {}; the run diverged: lower the learning rate, warm "
          "it up or clip gradients harder",
          at.step, loss, norm);
  return !finite;
}

void Engine::synchronize() { state_->streams->synchronize(); }

double Engine::evaluate(const BatchSource& data, int micros) {
  State& s = *state_;
  const int most = s.pipeline.evaluation.shape.micros;
  double loss = 0, valid = 0;
  for (int begin = 0; begin < micros; begin += most) {
    ScheduleShape shape = s.pipeline.evaluation.shape;
    shape.micros = std::min(most, micros - begin);
    const Work work{.train = false,
                    .batch =
                        [&](int micro) {
                          const Batch batch = data(begin + micro);
                          if (s.reports_loss() && s.settings.place.sequence == 0)
                            valid += double(batch.valid_targets);
                          return batch;
                        },
                    .scale = {},
                    .losses = s.rank->losses};
    s.run_forward(shape, work);
    if (!s.reports_loss()) continue;
    const std::vector<double> losses = to_host<double>(s.rank->losses, s.streams->compute);
    for (int micro = 0; micro < shape.micros; ++micro) loss += losses[size_t(micro)];
  }
  loss = s.ranks.sum(loss, "evaluation loss", s.streams->comm());
  return loss / std::max(1.0, s.ranks.sum(valid, "evaluated targets", s.streams->comm()));
}

std::vector<float> Engine::predict(const Batch& batch, std::optional<Range> wanted) {
  State& s = *state_;
  const Head& head = *s.model.head;
  const int64_t part = s.model.rows_per_sample, columns = head.columns();
  const int64_t tensor = s.settings.mesh.tensor, sequence = s.settings.mesh.sequence;
  const Range every_row{0, samples_per_micro() * part * sequence};
  const Range result = wanted.value_or(every_row);
  CHECK(intersect(result, every_row) == result, "rows {} to {} of a micro-batch of {}", result.begin,
        result.end, every_row.end);
  // Ranks that share sequences have different rows, so each gives all of its own.
  const Range local = sequence == 1 ? result : Range{0, samples_per_micro() * part};
  const int64_t rows = local.size();
  // [rank of the sequence axis, rank of the tensor axis, row, column]
  std::vector<float> every(size_t(sequence * tensor * rows * columns));
  const Tensor all(every.data(), DType::fp32, {sequence, tensor, rows, columns}, MemoryKind::host);
  const Tensor here = all.rows(Range{0, 1}.shifted(s.settings.place.sequence)).view({tensor, rows, columns});
  const Tensor mine = here.rows(Range{0, 1}.shifted(s.settings.place.tensor)).view({rows, columns});
  s.run_logits({.train = false, .batch = [&](int) { return batch; }, .scale = {}}, mine, local);
  const Mesh& mesh = s.ranks.mesh();
  Stream& comm = s.streams->comm();
  mesh.pipe->broadcast(mine, mesh.pipe->size() - 1, comm, {.what = "logits"});
  mesh.tensor->all_gather(here, mine, comm, {.what = "logits"});
  mesh.sequence->all_gather(all, here, comm, {.what = "logits"});
  comm.synchronize();
  if (tensor * sequence == 1 && columns == head.classes()) return every;
  std::vector<float> out;
  for (int64_t row = result.begin; row < result.end; ++row) {
    const int64_t sample = row / (part * sequence), position = row % (part * sequence);
    const int64_t at = sample * part + position % part - local.begin;
    for (int64_t t = 0; t < tensor; ++t) {
      const auto from = every.begin() + (((position / part) * tensor + t) * rows + at) * columns;
      out.insert(out.end(), from, from + std::clamp<int64_t>(head.classes() - t * columns, 0, columns));
    }
  }
  return out;
}

int64_t Engine::texts() const { return state_->texts ? state_->texts->count() : 0; }

std::vector<float> Engine::extend(const std::vector<TextPart>& parts) {
  State& s = *state_;
  CHECK(s.texts, "an engine that keeps no keys and values (EngineOptions::texts)");
  const std::vector<std::vector<PassOfTexts>> places = s.texts->extend(parts);
  const Mesh& mesh = s.ranks.mesh();
  const Head& head = *s.model.head;
  const int64_t sharers = mesh.data->size(), tensor = s.settings.mesh.tensor, columns = head.columns();
  std::vector<std::vector<size_t>> order(places.size());  // of the parts at each place
  size_t most = 1;
  for (size_t p = 0; p < places.size(); ++p) {
    for (const PassOfTexts& pass : places[p])
      order[p].insert(order[p].end(), pass.parts.begin(), pass.parts.end());
    most = std::max(most, order[p].size());
  }
  const auto rows = int64_t(most);
  // [place, rank of the tensor axis, part of the place, column]
  std::vector<float> every(size_t(sharers * tensor * rows * columns));
  const Tensor all(every.data(), DType::fp32, {sharers, tensor, rows, columns}, MemoryKind::host);
  const Tensor here = all.rows(Range{0, 1}.shifted(mesh.data->rank())).view({tensor, rows, columns});
  const Tensor mine = here.rows(Range{0, 1}.shifted(s.settings.place.tensor)).view({rows, columns});
  int64_t done = 0;
  for (const PassOfTexts& pass : places[size_t(mesh.data->rank())]) {
    const Batch batch = batch_of(pass.rows.tokens, pass.rows.tokens);
    const Range to = Range{0, pass.wanted.size()}.shifted(done);
    s.run_logits({.train = false, .batch = [&](int) { return batch; }, .scale = {}, .texts = &pass.rows},
                 mine.rows(to), pass.wanted);
    done = to.end;
  }
  Stream& comm = s.streams->comm();
  mesh.pipe->broadcast(mine, mesh.pipe->size() - 1, comm, {.what = "logits"});
  mesh.tensor->all_gather(here, mine, comm, {.what = "logits"});
  mesh.data->all_gather(all, here, comm, {.what = "logits"});
  comm.synchronize();
  std::vector<float> out(parts.size() * size_t(head.classes()));
  for (size_t p = 0; p < order.size(); ++p)
    for (size_t row = 0; row < order[p].size(); ++row)
      for (int64_t t = 0; t < tensor; ++t) {
        const auto from = every.begin() + ((int64_t(p) * tensor + t) * rows + int64_t(row)) * columns;
        std::copy_n(from, std::clamp<int64_t>(head.classes() - t * columns, 0, columns),
                    out.begin() + int64_t(order[p][row]) * head.classes() + t * columns);
      }
  return out;
}

void Engine::State::run_logits(Work work, const Tensor& logits, Range rows) {
  ScheduleShape shape = pipeline.evaluation.shape;
  shape.micros = 1;
  Buffer there;  // kernels of a GPU do not write to the host's memory
  if (settings.device.is_cuda() && rank->stage.shape().last && rows.size() > 0)
    there = memory.allocate(MemoryKind::device, Category::staging, DType::fp32, logits.shape(), "logits");
  if (rows.size() > 0) work.logits = there.defined() ? there.tensor() : logits;
  work.rows = rows;
  run_forward(shape, work);
  if (there.defined()) copy(logits, there, streams->compute), streams->compute.synchronize();
}

void Engine::State::run_forward(const ScheduleShape& shape, const Work& work) {
  const int stage = settings.place.pipe;
  Executor(rank->stage, ranks.links(), streams->compute, streams->comm())
      .run(with_transfers(forward_only(shape, stage), shape, stage), shape, work);
  streams->synchronize();
  rank->store.synchronize_disk();
}

void Engine::save_checkpoint(const std::string& dir, const std::string& tag, const std::string& client,
                             const Written& written) {
  State& s = *state_;
  s.rank->optimizer();
  const std::vector<Record> records = records_to_save(*s.rank, s.streams->compute);
  const std::string state = to_json(s.at, s.scaler.state(), s.options.seed, client);
  if (s.background) return s.background->begin(dir, tag, records, state, written);
  const SavedCheckpoint saved = cleave::save_checkpoint(dir, tag, records, state, s.ranks.world());
  if (written) written(saved);
}

void Engine::finish_save() {
  if (state_->background) state_->background->finish();
}

bool Engine::save_failed() const { return state_->background && state_->background->failed(); }

std::string Engine::load_checkpoint(const std::string& dir, const std::string& tag, Load what) {
  State& s = *state_;
  bool reset = what == Load::no_optimizer;
  std::vector<std::string> kinds = s.rank->saved->kinds();
  Restored restored;
  together(s.ranks.world(), Exit::checkpoint, [&] {
    const CheckpointReader reader(dir, tag);
    restored = from_json(reader.state(), reader.path().string());
    reset = reset || (restored.imported && holds_weights_alone(reader));
    if (reset) kinds.resize(1);  // the weights
    require_kinds(reader, kinds);
    for (const Record& r : records_to_load(*s.rank, s.streams->compute))
      if (std::find(kinds.begin(), kinds.end(), r.kind) != kinds.end()) reader.read(r);
  });
  s.at = restored.at;
  if (reset) s.at.optimizer_begin = s.at.applied;
  if (!restored.imported) s.options.seed = restored.seed;
  if (s.settings.config.precision == Precision::fp16 && !restored.imported) s.scaler.restore(restored.scaler);
  s.rank->saved->publish_masters(s.streams->compute);
  s.streams->synchronize();
  return restored.client;
}

void Engine::load_weights(const std::function<void(const Record&)>& read) {
  State& s = *state_;
  const std::string kind = s.rank->saved->kinds().front();
  together(s.ranks.world(), Exit::checkpoint, [&] {
    for (const Record& r : records_to_load(*s.rank, s.streams->compute))
      if (r.kind == kind) read(r);
  });
  s.rank->saved->publish_masters(s.streams->compute);
  s.streams->synchronize();
}

void Engine::save_16bit_model(const std::string& dir, const WeightNames& names, int64_t max_file_size) {
  State& s = *state_;
  synchronize();
  save_weights(*s.rank, s.ranks.world(), s.streams->compute, s.streams->comm(), dir, names,
               {.dtype = s.model.dtype, .max_file_size = max_file_size});
}

std::vector<float> Engine::parameter(const std::string& name) {
  State& s = *state_;
  std::vector<float> whole;
  for (const UnitSpec& unit : s.model.units())
    for (const ParamSpec& p : unit.params)
      if (p.name == name) whole.resize(size_t(p.whole_numel()));
  require(!whole.empty(), Exit::usage, "the model {} has no parameter {}", s.model.name, name);
  read_parameter(*s.rank, name, whole, s.streams->compute);
  // Every element is nonzero on one rank only, so the sum is exact.
  s.ranks.world().all_reduce(Tensor(whole.data(), DType::fp32, {int64_t(whole.size())}, MemoryKind::host),
                             s.streams->comm(), {.what = "a whole parameter"});
  s.streams->comm().synchronize();
  return whole;
}

void Engine::set_parameters(const std::function<std::vector<float>(const ParamSpec&)>& values) {
  write_parameters(*state_->rank, values, state_->streams->compute);
  synchronize();
}

const EngineNotes& Engine::notes() const { return state_->notes; }
UpdateBytes Engine::update_bytes() const { return state_->needs.update; }
bool Engine::state_is_whole() const { return state_->whole; }
bool Engine::optimizer_is_new() const { return state_->at.applied == state_->at.optimizer_begin; }
int64_t Engine::step() const { return state_->at.step; }
const Model& Engine::model() const { return state_->model; }
const DsConfig& Engine::config() const { return state_->settings.config; }
Device Engine::device() const { return state_->settings.device; }
int64_t Engine::params() const { return state_->model.params(); }
int64_t Engine::samples_per_micro() const { return state_->settings.config.train_micro_batch_size_per_gpu; }
MemoryTable Engine::memory_planned() const { return state_->needs.memory; }
MemoryTable Engine::memory_live() const { return state_->memory.live(); }
MemoryTable Engine::memory_peak() const { return state_->memory.peak(); }
const MeshShape& Engine::mesh() const { return state_->settings.mesh; }
MeshPlace Engine::place() const { return state_->settings.place; }
double Engine::idle_share() const { return state_->pipeline.idle_share; }
Simulation Engine::timeline() const {
  return simulate(state_->pipeline.schedule,
                  {.work = state_->pipeline.work, .splits = state_->pipeline.splits, .record = true});
}
const std::vector<LayerCost>& Engine::layer_costs() const { return state_->pipeline.layers; }
int64_t Engine::frame_bytes() const { return state_->rank->stage.frame_bytes(); }

std::string Engine::describe_units() const {
  const ParameterStore& store = state_->rank->store;
  std::string text = fmt::format("{:<24} {:>6} {:>12} {:>12}  {:<12} {}\n", "unit of this rank", "params",
                                 "elements", "of this rank", "weights in", "gradients in");
  for (int u = 0; u < store.units(); ++u) {
    const FlatLayout& layout = store.layout(u);
    const Tensor gradients = store.gradient_slice(u);
    text += fmt::format("{:<24} {:>6} {:>12} {:>12}  {:<12} {}\n", layout.name(), layout.params(),
                        layout.numel(), store.slice(u).size(), name_of(store.weights_slice(u).memory()),
                        gradients.defined() ? name_of(gradients.memory()) : "none");
  }
  return text;
}

CommBytes Engine::comm_bytes() const {
  CommBytes sum;
  for (const Ranks::Group& g : state_->ranks.groups())
    for (int i = 0; i < kCollectives; ++i) sum[Collective(i)] += g.ranks->bytes()[Collective(i)];
  return sum;
}

std::vector<std::pair<RankGroup, CommBytes>> Engine::comm_bytes_by_group() const {
  std::vector<std::pair<RankGroup, CommBytes>> out;
  for (const Ranks::Group& g : state_->ranks.groups()) out.emplace_back(g.what, g.ranks->bytes());
  return out;
}

}  // namespace cleave
