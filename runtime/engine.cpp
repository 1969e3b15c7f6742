#include "runtime/engine.h"

#include <algorithm>
#include <cmath>

#include "device/copy.h"
#include "optim/clipping.h"
#include "runtime/engine_state.h"

namespace cleave {
namespace {

// Where the average over micro-batches and ranks is taken: `before` scales every loss, `after` the reduced
// gradient.
struct Averaging {
  double before = 1, after = 1;
};
Averaging averaging(const DsConfig& c, int ranks) {
  const double accumulation = double(c.gradient_accumulation_steps);
  if (c.gradient_sum) return {1 / accumulation, 1};
  if (c.exact_sums) return {1 / (accumulation * ranks), 1};  // a function of the number of micro-batches
  if (!c.prescale_gradients && c.gradient_predivide_factor != 1)
    return {1 / (accumulation * c.gradient_predivide_factor), c.gradient_predivide_factor / ranks};
  return {1 / (accumulation * ranks), 1};
}

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

}  // namespace

std::vector<std::string> EngineNotes::lines() const {
  std::vector<std::string> out{pipeline, disk, update, graphs};
  std::erase_if(out, [](const std::string& text) { return text.empty(); });
  return out;
}

Engine::Engine(const DsConfig& config, Model model, Communicator& world, const EngineOptions& options)
    : Engine(config, factory_of(std::move(model)), world, options) {}

Engine::Engine(const DsConfig& config, const ModelFactory& make, Communicator& world,
               const EngineOptions& options)
    : state_(std::make_unique<State>(config, make, world, options)) {
  State& s = *state_;
  s.plan_memory();
  s.check_plan();
  if (s.choose_update()) s.plan_memory(), s.check_plan();
  s.check_disk();
  s.memory.expect(s.planned);
  s.spaces = Workspaces(s.memory, s.config.zero.overlap_comm, s.rows_overlap);
  s.spaces.compute.lend_to(s.compute);
  if (s.config.zero.overlap_comm) s.spaces.comm.lend_to(s.overlapped);
  if (s.rows_overlap) s.spaces.rows.lend_to(s.rows);
  s.all = std::make_unique<Allocation>(s.config, s.model, s.plan, s.mesh, s.axes.tensor, s.near_groups(),
                                       *s.self, s.memory, s.compute, s.comm());
  s.lend_buffers_of_store();
  s.summed_late = s.units_summed_late();
  s.all->state->initialize(options.seed, s.compute);
  s.synchronize();
  s.name_tracks();  // from here on
  s.use_graphs();
}

Engine::~Engine() = default;

StepResult Engine::train_batch(const BatchSource& data) {
  State& s = *state_;
  ShardedOptimizer& optimizer = s.optimizer();
  const double loss_scale = s.scaler.scale();
  // Exact sums take the loss scale out of every contribution, others out of the sum.
  const double left_scale = s.config.exact_sums ? 1 : loss_scale;
  const Averaging average = averaging(s.config, s.mesh.shape.data);
  std::vector<double> valid(size_t(s.config.gradient_accumulation_steps), 1);
  const Work work{
      .batch =
          [&](int micro) {
            Batch batch = data(micro);
            batch.position.seed = s.options.seed, batch.position.step = s.at.step;
            valid[size_t(micro)] = double(std::max<int64_t>(1, batch.valid_targets));
            return batch;
          },
      .scale = [&](int micro) { return float(loss_scale * average.before / valid[size_t(micro)]); },
      .losses = s.all->losses};
  const Rates rates = s.schedule.at(s.at.applied);
  StepArgs update{.lr = rates.lr,
                  .momentum = rates.momentum,
                  .beta2 = rates.beta2,
                  .grad_scale = average.after * gradient_factor(left_scale, 0, 0),
                  .step = s.at.applied - s.at.optimizer_begin + 1};
  optimizer.begin_step(s.norm_first() ? std::nullopt : std::optional(update), s.summed_late, s.compute);
  s.all->store.begin_step(left_scale / loss_scale, &optimizer);
  Executor(s.all->stage, s.links(), s.compute, s.comm(), s.options.trace, s.graphs.get())
      .run(s.plan.schedule.ranks[size_t(s.mesh.place.pipe)], s.plan.schedule.shape, work);
  s.sum_shared_gradients();
  s.all->store.wait_for_gradients();
  s.rows.synchronize();  // what went wrong there
  const double norm = std::sqrt(s.squared_norm()) * average.after / left_scale;

  std::vector<double> losses;
  if (s.reports_loss()) {
    losses = to_host<double>(s.all->losses, s.compute);
    losses.resize(valid.size());
    for (size_t micro = 0; micro < valid.size(); ++micro) losses[micro] /= valid[micro];
  }
  const double loss = s.mean_of_losses(losses);

  StepResult result{.step = ++s.at.step, .loss = loss, .grad_norm = norm, .loss_scale = loss_scale};
  result.lr = rates.lr;
  result.skipped = overflowed(loss, norm);
  if (result.skipped) {
    ++s.at.skipped;
  } else {
    const TraceSpan seen(s.options.trace, s.compute, "step", "update");
    ++s.at.applied;
    update.grad_scale = average.after * gradient_factor(left_scale, norm, s.config.gradient_clipping);
    optimizer.finish_step(update);
    if (!s.update_runs_on()) s.synchronize();
  }
  if (s.options.trace && s.options.trace->on()) s.synchronize(), s.options.trace->end_step();
  result.skipped_total = s.at.skipped;
  return result;
}

// Whether this step must be skipped. The norm is already summed over the ranks, so every rank answers alike.
bool Engine::overflowed(double loss, double norm) {
  State& s = *state_;
  const bool finite = std::isfinite(norm);
  if (s.config.precision == Precision::fp16) {
    require(s.scaler.update(!finite) == LossScaler::Update::ok, Exit::training,
            "step {}: the gradients overflow in fp16 and the loss scale is at its minimum of {}; lower the "
            "learning "
            "rate, or use bf16",
            s.at.step, s.scaler.scale());
    return !finite;
  }
  const bool may_skip =
      s.config.precision == Precision::bf16 && s.config.check_grad_overflow && std::isfinite(loss);
  require(finite || may_skip, Exit::training,
          "step {}: the loss is {} and the gradient norm {}; the run diverged: lower the learning rate, warm "
          "it up or "
          "clip gradients harder",
          s.at.step, loss, norm);
  return !finite;
}

void Engine::synchronize() { state_->synchronize(); }

double Engine::evaluate(const BatchSource& data, int micros) {
  State& s = *state_;
  const int most = s.plan.evaluation.shape.micros;
  double loss = 0, valid = 0;
  for (int begin = 0; begin < micros; begin += most) {
    ScheduleShape shape = s.plan.evaluation.shape;
    shape.micros = std::min(most, micros - begin);
    const Work work{.train = false,
                    .batch =
                        [&](int micro) {
                          const Batch batch = data(begin + micro);
                          if (s.reports_loss() && s.mesh.place.sequence == 0)
                            valid += double(batch.valid_targets);
                          return batch;
                        },
                    .scale = {},
                    .losses = s.all->losses};
    run_forward(shape, work);
    if (!s.reports_loss()) continue;
    const std::vector<double> losses = to_host<double>(s.all->losses, s.compute);
    for (int micro = 0; micro < shape.micros; ++micro) loss += losses[size_t(micro)];
  }
  loss = s.sum_over_ranks(loss, "evaluation loss");
  return loss / std::max(1.0, s.sum_over_ranks(valid, "evaluated targets"));
}

std::vector<float> Engine::predict(const Batch& batch, std::optional<Range> wanted) {
  State& s = *state_;
  const Head& head = *s.model.head;
  const int64_t part = s.model.rows_per_sample, columns = head.columns();
  const int64_t tensor = s.mesh.shape.tensor, sequence = s.mesh.shape.sequence;
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
  const Tensor here = all.rows(Range{0, 1}.shifted(s.mesh.place.sequence)).view({tensor, rows, columns});
  const Tensor mine = here.rows(Range{0, 1}.shifted(s.mesh.place.tensor)).view({rows, columns});
  ScheduleShape shape = s.plan.evaluation.shape;
  shape.micros = 1;
  Buffer there;  // kernels of a GPU do not write to the host's memory
  if (s.options.device.is_cuda() && s.all->stage.shape().last)
    there = s.memory.allocate(MemoryKind::device, Category::staging, DType::fp32, mine.shape(), "logits");
  run_forward(shape, {.train = false,
                      .batch = [&](int) { return batch; },
                      .scale = {},
                      .logits = there.defined() ? there.tensor() : mine,
                      .rows = local});
  if (there.defined()) copy(mine, there, s.compute), s.compute.synchronize();
  s.mesh.pipe->broadcast(mine, shape.stages - 1, s.comm(), {.what = "logits"});
  s.mesh.tensor->all_gather(here, mine, s.comm(), {.what = "logits"});
  s.mesh.sequence->all_gather(all, here, s.comm(), {.what = "logits"});
  s.comm().synchronize();
  if (tensor * sequence == 1) return every;
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

void Engine::run_forward(const ScheduleShape& shape, const Work& work) {
  State& s = *state_;
  const InstructionList list =
      with_transfers(forward_only(shape, s.mesh.place.pipe), shape, s.mesh.place.pipe);
  Executor(s.all->stage, s.links(), s.compute, s.comm()).run(list, shape, work);
  s.synchronize();
  s.all->store.synchronize_disk();
}

const EngineNotes& Engine::notes() const { return state_->notes; }
UpdateBytes Engine::update_bytes() const { return state_->update_bytes; }
int64_t Engine::step() const { return state_->at.step; }
const Model& Engine::model() const { return state_->model; }
const DsConfig& Engine::config() const { return state_->config; }
Device Engine::device() const { return state_->options.device; }
int64_t Engine::params() const { return state_->model.params(); }
int64_t Engine::samples_per_micro() const { return state_->config.train_micro_batch_size_per_gpu; }
MemoryTable Engine::memory_planned() const { return state_->planned; }
MemoryTable Engine::memory_live() const { return state_->memory.live(); }
MemoryTable Engine::memory_peak() const { return state_->memory.peak(); }
const MeshShape& Engine::mesh() const { return state_->mesh.shape; }
MeshPlace Engine::place() const { return state_->mesh.place; }
double Engine::idle_share() const { return state_->plan.idle_share; }
Simulation Engine::timeline() const {
  return simulate(state_->plan.schedule,
                  {.work = state_->plan.work, .splits = state_->plan.splits, .record = true});
}
const std::vector<LayerCost>& Engine::layer_costs() const { return state_->plan.layers; }
int64_t Engine::frame_bytes() const { return state_->all->stage.frame_bytes(); }

std::string Engine::describe_units() const {
  const ParameterStore& store = state_->all->store;
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
  for (const State::Talk& g : state_->groups())
    for (int i = 0; i < kCollectives; ++i) sum[Collective(i)] += g.ranks->bytes()[Collective(i)];
  return sum;
}

std::vector<std::pair<std::string, CommBytes>> Engine::comm_bytes_by_group() const {
  std::vector<std::pair<std::string, CommBytes>> out;
  for (const State::Talk& g : state_->groups()) out.emplace_back(g.name, g.ranks->bytes());
  return out;
}

}  // namespace cleave
