#include "runtime/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "device/copy.h"
#include "device/workspace.h"
#include "optim/clipping.h"
#include "optim/loss_scaler.h"
#include "optim/schedule.h"
#include "runtime/host_records.h"
#include "runtime/training_state.h"
#include "zero/sharded_optimizer.h"

namespace cleave {
namespace {

DType dtype_of(Precision p) {
  switch (p) {
    case Precision::fp32:
      return DType::fp32;
    case Precision::fp16:
      return DType::fp16;
    case Precision::bf16:
      return DType::bf16;
  }
  return DType::fp32;
}

StoreOptions store_options(const DsConfig& c) {
  const Precision gradients = c.grad_accum_dtype.value_or(c.precision);
  return {.weights = dtype_of(c.precision),
          .gradients = dtype_of(gradients),
          .wire = dtype_of(c.communication_data_type.value_or(gradients)),
          .reduce_numel = std::max<int64_t>(1, c.zero.reduce_bucket_size),
          .gather_numel = std::max<int64_t>(1, c.zero.allgather_bucket_size),
          .prefetch_visits = c.zero.stage3_prefetch_bucket_size > 0 ? 1 : 0,
          .overlap = c.zero.overlap_comm};
}

Placement placement(const DsConfig& c) {
  const OffloadConfig& o = c.zero.offload_optimizer;
  if (o.device == "none") return {};
  return {.optimizer = o.pin_memory ? MemoryKind::pinned : MemoryKind::host};
}

// Where the average over micro-batches and ranks is taken: `before` scales every loss, `after` the reduced
// gradient.
struct Averaging {
  double before = 1, after = 1;
};
Averaging averaging(const DsConfig& c, int ranks) {
  const double accumulation = double(c.gradient_accumulation_steps);
  if (c.gradient_sum) return {1 / accumulation, 1};
  if (!c.prescale_gradients && c.gradient_predivide_factor != 1)
    return {1 / (accumulation * c.gradient_predivide_factor), c.gradient_predivide_factor / ranks};
  return {1 / (accumulation * ranks), 1};
}

}  // namespace

// All that a rank allocates. Built twice: against a dry memory for the plan, then for real.
struct Allocation {
  Allocation(const DsConfig& config, const Model& model, Communicator& data, Communicator& self,
             Memory& memory, Stream& compute, Stream& comm)
      : store(memory, store_options(config), compute, comm),
        stage(model, store, config.train_micro_batch_size_per_gpu,
              [&](const UnitSpec& unit) {
                const ZeroPlan plan = plan_for_stage(config.zero.stage, data, self);
                plan.check(data.size());
                int64_t numel = 0;
                for (const ParamSpec& p : unit.params) numel += p.numel();
                const bool whole =
                    plan.parameter_shards() > 1 && numel < config.zero.stage3_param_persistence_threshold;
                return whole ? with_whole_parameters(plan, self) : plan;
              }),
        optimizer(memory, store, make_optimizer(config.optimizer), placement(config)) {
    store.commit();
    stage.allocate(memory);
    const auto device = MemoryKind::device;
    squares =
        memory.allocate(device, Category::activations, DType::fp64, {store.units()}, "squared gradients");
    losses = memory.allocate(device, Category::activations, DType::fp64, {config.gradient_accumulation_steps},
                             "losses");
  }

  ParameterStore store;
  Stage stage;
  ShardedOptimizer optimizer;
  Buffer squares, losses;
};

// Scratch of the compute and the communication stream of a CUDA rank.
struct Workspaces {
  Workspaces() = default;
  Workspaces(Memory& memory, bool overlap)
      : compute(allocate_workspace(memory, kKernelScratch)),
        comm(overlap ? allocate_workspace(memory, kCopyScratch) : Workspace{}) {}
  Workspace compute, comm;
};

struct Engine::State {
  State(const DsConfig& c, Model m, Communicator& w, const EngineOptions& o)
      : config(c),
        model(std::move(m)),
        world(w),
        self(self_communicator()),
        options(o),
        memory(o.limits, Memory::Mode::real, o.device),
        compute(o.device, o.compute),
        overlapped(o.device, c.zero.overlap_comm ? Stream::Mode::worker : Stream::Mode::inline_),
        schedule(c.scheduler, c.optimizer.lr),
        scaler(c.precision == Precision::fp16 ? LossScaler(c.fp16, c.zero.stage) : LossScaler()) {}

  Stream& comm() { return config.zero.overlap_comm ? overlapped : compute; }

  DsConfig config;
  Model model;
  Communicator& world;
  std::unique_ptr<Communicator> self;
  EngineOptions options;
  Memory memory;
  MemoryTable planned;
  Workspaces spaces;
  Stream compute, overlapped;
  std::unique_ptr<Allocation> all;
  LrSchedule schedule;
  LossScaler scaler;
  TrainingState at;
};

Engine::Engine(const DsConfig& config, Model model, Communicator& world, const EngineOptions& options)
    : state_(std::make_unique<State>(config, std::move(model), world, options)) {
  State& s = *state_;
  {
    Memory dry({}, Memory::Mode::dry, options.device);
    const Workspaces spaces(dry, s.config.zero.overlap_comm);
    const Allocation plan(s.config, s.model, world, *s.self, dry, s.compute, s.comm());
    s.planned = dry.peak();
  }
  check_fits(s.planned, options.limits);
  s.memory.expect(s.planned);
  s.spaces = Workspaces(s.memory, s.config.zero.overlap_comm);
  s.spaces.compute.lend_to(s.compute);
  if (s.config.zero.overlap_comm) s.spaces.comm.lend_to(s.overlapped);
  s.all = std::make_unique<Allocation>(s.config, s.model, world, *s.self, s.memory, s.compute, s.comm());
  s.all->optimizer.initialize(options.seed, s.compute);
  s.compute.synchronize();
  s.comm().synchronize();
}

Engine::~Engine() = default;

StepResult Engine::train_batch(const BatchSource& data) {
  State& s = *state_;
  const int micros = int(s.config.gradient_accumulation_steps);
  const Averaging average = averaging(s.config, s.world.size());
  const double loss_scale = s.scaler.scale();

  s.all->store.begin_step();
  std::vector<double> valid(size_t(micros), 1);
  for (int micro = 0; micro < micros; ++micro) {
    s.all->stage.wait_until_loaded();
    Batch batch = data(micro);
    batch.position.seed = s.options.seed, batch.position.step = s.at.step;
    valid[size_t(micro)] = double(std::max<int64_t>(1, batch.valid_targets));
    const double scale = loss_scale * average.before / valid[size_t(micro)];
    s.all->stage.train(batch, float(scale), micro + 1 == micros,
                       s.all->losses.tensor().slice({micro, micro + 1}), s.compute);
  }
  s.all->store.wait_for_gradients();
  s.all->optimizer.square_gradients(s.all->squares, s.compute);
  s.all->store.sum_over_slices(s.all->squares);
  double squares = 0;
  for (const double x : to_host<double>(s.all->squares, s.compute)) squares += x;
  const std::vector<double> losses = to_host<double>(s.all->losses, s.compute);
  const double norm = std::sqrt(squares) * average.after / loss_scale;
  double loss = 0;
  for (int micro = 0; micro < micros; ++micro) loss += losses[size_t(micro)] / valid[size_t(micro)];
  loss = mean_over_ranks(loss / micros);

  StepResult result{.step = ++s.at.step, .loss = loss, .grad_norm = norm, .loss_scale = loss_scale};
  const Rates rates = s.schedule.at(s.at.applied);
  result.lr = rates.lr;
  result.skipped = overflowed(loss, norm);
  if (result.skipped) {
    ++s.at.skipped;
  } else {
    s.all->optimizer.step(
        {.lr = rates.lr,
         .momentum = rates.momentum,
         .beta2 = rates.beta2,
         .grad_scale = average.after * gradient_factor(loss_scale, norm, s.config.gradient_clipping),
         .step = ++s.at.applied},
        s.compute);
    s.compute.synchronize();
    s.comm().synchronize();
  }
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

double Engine::mean_over_ranks(double value) {
  State& s = *state_;
  Tensor t(&value, DType::fp64, {1}, MemoryKind::host);
  s.world.all_reduce(t, s.comm(), {.what = "loss"});
  s.comm().synchronize();
  return value / s.world.size();
}

double Engine::evaluate(const BatchSource& data, int micros) {
  State& s = *state_;
  double totals[2] = {0, 0};  // loss, valid targets
  for (int micro = 0; micro < micros; ++micro) {
    const Batch batch = data(micro);
    s.all->stage.evaluate(batch, s.all->losses.tensor().slice({0, 1}), s.compute);
    totals[0] += to_host<double>(s.all->losses.tensor().slice({0, 1}), s.compute)[0];
    totals[1] += double(batch.valid_targets);
  }
  s.comm().synchronize();
  s.world.all_reduce(Tensor(totals, DType::fp64, {2}, MemoryKind::host), s.comm(),
                     {.what = "evaluation loss"});
  s.comm().synchronize();
  return totals[0] / std::max(1.0, totals[1]);
}

std::vector<float> Engine::predict(const Batch& batch) {
  State& s = *state_;
  const int64_t rows = samples_per_micro() * s.model.rows_per_sample;
  std::vector<float> out(size_t(rows * s.model.head->classes()));
  const Tensor logits(out.data(), DType::fp32, {rows, s.model.head->classes()}, MemoryKind::host);
  Buffer there;  // kernels of a GPU do not write to the host's memory
  if (s.options.device.is_cuda())
    there = s.memory.allocate(MemoryKind::device, Category::staging, DType::fp32, logits.shape(), "logits");
  s.all->stage.predict(batch, there.defined() ? there.tensor() : logits, s.compute);
  if (there.defined()) copy(logits, there, s.compute);
  s.compute.synchronize();
  s.comm().synchronize();
  return out;
}

std::vector<Record> Engine::records(bool all_slices) {
  State& s = *state_;
  std::vector<Record> out;
  const std::vector<std::string> kinds = s.all->optimizer.kinds();
  for (int u = 0; u < s.all->store.units(); ++u) {
    const FlatLayout& layout = s.all->store.layout(u);
    const Range mine = s.all->store.slice(u);
    // Replicas share the work: each saves the part that it counts in the norm.
    const Range part = all_slices ? Range{0, mine.size()} : s.all->store.norm_range(u);
    for (int kind = 0; kind < int(kinds.size()); ++kind)
      for (const FlatLayout::Piece& p : layout.pieces(part.shifted(mine.begin))) {
        const int64_t at = part.begin + p.offset;
        out.push_back({kinds[size_t(kind)], layout.param(p.param).name, layout.param(p.param).shape,
                       p.elements, s.all->optimizer.record(u, kind).slice({at, at + p.elements.size()})});
      }
  }
  return out;
}

void Engine::save_checkpoint(const std::string& dir, const std::string& tag, const std::string& client) {
  State& s = *state_;
  const HostRecords mine(records(false), s.memory, s.compute);
  cleave::save_checkpoint(dir, tag, mine.here(), to_json(s.at, s.scaler.state(), s.options.seed, client),
                          s.world);
}

std::string Engine::load_checkpoint(const std::string& dir, const std::string& tag) {
  State& s = *state_;
  const CheckpointReader reader(dir, tag);
  const Restored restored = from_json(reader.state(), reader.path().string());
  HostRecords mine(records(true), s.memory, s.compute);
  for (const Record& r : mine.here()) reader.read(r);
  mine.store();
  s.at = restored.at;
  s.options.seed = restored.seed;
  if (s.config.precision == Precision::fp16) s.scaler.restore(restored.scaler);
  s.all->optimizer.publish_masters(s.compute);
  s.compute.synchronize();
  s.comm().synchronize();
  return restored.client;
}

std::vector<float> Engine::parameter(const std::string& name) {
  State& s = *state_;
  for (int u = 0; u < s.all->store.units(); ++u) {
    const FlatLayout& layout = s.all->store.layout(u);
    for (int p = 0; p < layout.params(); ++p) {
      if (layout.param(p).name != name) continue;
      std::vector<float> whole(size_t(layout.param(p).numel()));
      const Range part = s.all->store.norm_range(u).shifted(s.all->store.slice(u).begin);
      for (const FlatLayout::Piece& piece : layout.pieces(part)) {
        if (piece.param != p) continue;
        const int64_t at = part.begin - s.all->store.slice(u).begin + piece.offset;
        copy(Tensor(whole.data() + piece.elements.begin, DType::fp32, {piece.elements.size()},
                    MemoryKind::host),
             s.all->optimizer.record(u, 0).slice({at, at + piece.elements.size()}), s.compute);
      }
      s.compute.synchronize();
      // Every element is nonzero on one rank only, so the sum is exact.
      s.world.all_reduce(Tensor(whole.data(), DType::fp32, {int64_t(whole.size())}, MemoryKind::host),
                         s.comm(), {.what = "a whole parameter"});
      s.comm().synchronize();
      return whole;
    }
  }
  fail(Exit::usage, "the model {} has no parameter {}", s.model.name, name);
}

void Engine::set_parameters(const std::function<std::vector<float>(const ParamSpec&)>& values) {
  State& s = *state_;
  for (int u = 0; u < s.all->store.units(); ++u) {
    const FlatLayout& layout = s.all->store.layout(u);
    for (const FlatLayout::Piece& piece : layout.pieces(s.all->store.slice(u))) {
      std::vector<float> whole = values(layout.param(piece.param));
      CHECK(int64_t(whole.size()) == layout.param(piece.param).numel(), "{} has {} elements, got {}",
            layout.param(piece.param).name, layout.param(piece.param).numel(), whole.size());
      const Range part{piece.offset, piece.offset + piece.elements.size()};
      copy(s.all->optimizer.record(u, 0).slice(part),
           Tensor(whole.data() + piece.elements.begin, DType::fp32, {part.size()}, MemoryKind::host),
           s.compute);
      s.compute.synchronize();
    }
  }
  s.all->optimizer.publish_masters(s.compute);
  s.compute.synchronize();
  s.comm().synchronize();
}

int64_t Engine::step() const { return state_->at.step; }
const Model& Engine::model() const { return state_->model; }
const DsConfig& Engine::config() const { return state_->config; }
Device Engine::device() const { return state_->options.device; }
int64_t Engine::params() const { return state_->model.params(); }
int64_t Engine::samples_per_micro() const { return state_->config.train_micro_batch_size_per_gpu; }
MemoryTable Engine::memory_planned() const { return state_->planned; }
MemoryTable Engine::memory_live() const { return state_->memory.live(); }
MemoryTable Engine::memory_peak() const { return state_->memory.peak(); }
CommBytes Engine::comm_bytes() const { return state_->world.bytes(); }

}  // namespace cleave
