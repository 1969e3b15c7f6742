#include "runtime/engine_state.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "runtime/disk_place.h"
#include "runtime/inference.h"

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

// Into how many contributions a gradient falls at most: micro-batches of all ranks, times uses of its unit.
double most_contributions(const DsConfig& c, const Model& model, int data) {
  std::map<std::string, int> uses;
  int most = 1;
  auto add = [&](const std::vector<UnitSpec>& units) {
    for (const UnitSpec& u : units) most = std::max(most, ++uses[u.name]);
  };
  for (const auto& layer : model.layers) add(layer->units());
  add(model.head->units());
  return double(c.gradient_accumulation_steps) * data * most;
}

int rank_of(const Mesh& mesh) {
  return (mesh.place.pipe * mesh.data->size() + mesh.data->rank()) * mesh.shape.tensor + mesh.place.tensor;
}

StoreOptions store_options(const DsConfig& c, const Model& model, const Mesh& mesh, bool trains) {
  const Precision gradients = c.grad_accum_dtype.value_or(c.precision);
  StoreOptions options{.weights = dtype_of(c.precision),
                       .gradients = dtype_of(gradients),
                       .wire = dtype_of(c.communication_data_type.value_or(gradients)),
                       .reduce_numel = std::max<int64_t>(1, c.zero.reduce_bucket_size),
                       .gather_numel = std::max<int64_t>(1, c.zero.allgather_bucket_size),
                       .prefetch_visits = c.zero.stage3_prefetch_bucket_size > 0 ? 1 : 0,
                       .live_numel = c.zero.stage3_max_live_parameters,
                       .overlap = c.zero.overlap_comm,
                       .trains = trains,
                       .counts_replicated = mesh.place.tensor == 0};
  options.disk = parameter_place(c, rank_of(mesh));
  if (c.exact_sums) {
    options.gradients = options.wire = DType::int64;
    options.grid = c.exact_sums_grid;
    options.limit = 0x1p62 / most_contributions(c, model, mesh.data->size() * mesh.shape.tensor);
  }
  return options;
}

ZeroPlan zero_plan(const DsConfig& config, const UnitSpec& unit, Communicator& data, const NearGroups& near,
                   Communicator& self) {
  ZeroPlan plan = !near.near                        ? plan_for_stage(config.zero.stage, data, self)
                  : config.zero.mics_shard_size > 0 ? hybrid_plan(near, self)
                                                    : nested_plan(near, self);
  plan.check(data.size());
  plan.home = shard_home(config);
  int64_t numel = 0;
  for (const ParamSpec& p : unit.params) numel += p.numel();
  // A nested plan publishes across: it has no group to keep a unit whole with.
  const bool can = plan.gathers() && plan.gather_on_publish->size() == 1;
  const bool whole = can && numel < config.zero.stage3_param_persistence_threshold;
  return whole ? with_whole_parameters(plan, self) : plan;
}

}  // namespace

DType model_dtype(const DsConfig& config) { return dtype_of(config.precision); }

Allocation::Allocation(const DsConfig& config, const Model& model, const PipelinePlan& plan, const Mesh& mesh,
                       const TensorAxis& axis, const NearGroups& near, Communicator& self, Memory& memory,
                       Stream& compute, Stream& comm)
    : store(memory, store_options(config, model, mesh, plan.stages[0].trains), compute, comm),
      stage(model, plan.stages[size_t(mesh.place.pipe)], store, config.train_micro_batch_size_per_gpu, axis,
            [&, kept = KeptInMemory(config.zero.offload_param)](const UnitSpec& unit) mutable {
              ZeroPlan of_unit = zero_plan(config, unit, *mesh.data, near, self);
              of_unit.home = kept.home_of(unit, of_unit);
              return of_unit;
            }) {
  if (stage.shape().trains) {
    auto owned = std::make_unique<ShardedOptimizer>(memory, store, make_optimizer(config.optimizer),
                                                    placement(config, rank_of(mesh)), *mesh.tensor);
    optimizer = owned.get(), state = std::move(owned);
  } else {
    std::vector<int> units(size_t(store.units()));
    std::iota(units.begin(), units.end(), 0);
    state = std::make_unique<WeightLoader>(memory, store, std::move(units));
  }
  store.commit();
  stage.allocate(memory, compute);
  const auto device = MemoryKind::device;
  const bool exact = store.options().exact();
  // Sums are made where the gradients live.
  squares =
      memory.allocate(shard_home(config).gradients, Category::activations, exact ? DType::int64 : DType::fp64,
                      {!optimizer ? 0
                       : exact    ? 4 * store.units() + 1
                                  : store.units()},
                      "squared gradients");
  losses =
      memory.allocate(device, Category::activations, DType::fp64, {plan.evaluation.shape.micros}, "losses");
}

Engine::State::State(const DsConfig& c, const ModelFactory& make, Communicator& w, const EngineOptions& o)
    : config(o.inference ? inference_config(c) : c),
      world(w),
      mesh(w, mesh_shape(c, w.size())),
      rows_overlap(mesh.shape.tensor > 1 && c.tensor_parallel.tp_overlap_comm.value_or(o.device.is_cuda())),
      axes(TensorAxis(*mesh.tensor, c.tensor_parallel.sequence_parallel,
                      {rows_overlap ? &rows : nullptr, c.tensor_parallel.piece_rows()}),
           SequenceAxis(*mesh.sequence)),
      model(make(axes)),
      plan(mesh.shape.tensor * mesh.shape.sequence == 1 ? plan_pipeline(config, model, !o.inference)
                                                        : plan_pipeline(config, make(Axes()), !o.inference)),
      self(self_communicator()),
      activations(mesh.pipe->duplicate("pipe activations")),
      gradients(mesh.pipe->duplicate("pipe gradients")),
      options(o),
      memory(o.limits, o.dry ? Memory::Mode::dry : Memory::Mode::real, o.device),
      compute(o.dry ? Device{} : o.device, o.dry ? Stream::Mode::dry : o.compute),
      overlapped(o.dry ? Device{} : o.device, o.dry                 ? Stream::Mode::dry
                                              : c.zero.overlap_comm ? Stream::Mode::worker
                                                                    : Stream::Mode::inline_),
      rows(o.dry || !rows_overlap ? Device{} : o.device, o.dry          ? Stream::Mode::dry
                                                         : rows_overlap ? Stream::Mode::worker
                                                                        : Stream::Mode::inline_),
      schedule(c.scheduler, c.optimizer.lr),
      scaler(c.precision == Precision::fp16 ? LossScaler(c.fp16, c.zero.stage) : LossScaler()) {
  notes.pipeline = plan.line;
  if (c.tf32) compute.allow_tf32();
  require(model.dtype == dtype_of(c.precision), Exit::usage,
          "{} was made in {}, but the configuration trains in {}; make it in model_dtype(config), or change "
          "fp16.enabled and bf16.enabled",
          model.name, name_of(model.dtype), name_of(dtype_of(c.precision)));
  require(model.parts == mesh.shape.sequence, Exit::usage,
          "sequence_parallel_size is {}, but the sequences of {} are whole; set the size to 1",
          mesh.shape.sequence, model.name);
  if (const int n = config.zero.near_ranks(); n > 0) {
    const int place = mesh.data->rank(), data = mesh.data->size();
    require(data % n == 0, Exit::usage, "groups of {} near ranks do not divide the {} of the data axis", n,
            data);
    near = mesh.data->split({place / n, place % n, n}, "data near");
    across = mesh.data->split({place % n, place / n, data / n}, "data across");
  }
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const std::vector<int>& holders = plan.holders[u];
    if (holders.size() < 2) continue;
    const int before =
        int(std::lower_bound(holders.begin(), holders.end(), mesh.place.pipe) - holders.begin());
    const bool mine = before < int(holders.size()) && holders[size_t(before)] == mesh.place.pipe;
    const int others = mesh.shape.pipe - int(holders.size());
    auto group = mesh.pipe->split(mine ? Communicator::Part{1, before, int(holders.size())}
                                       : Communicator::Part{0, mesh.place.pipe - before, others},
                                  "tied " + plan.units[u]);
    if (mine) tied.emplace_back(plan.units[u], std::move(group));
  }
}

std::vector<Engine::State::Talk> Engine::State::groups() const {
  std::vector<Talk> out;
  auto add = [&](std::string name, const Communicator* ranks) {
    const bool known = std::any_of(out.begin(), out.end(), [&](const Talk& t) { return t.ranks == ranks; });
    if (!known && ranks->size() > 1) out.push_back({std::move(name), ranks});
  };
  // An axis that has every rank is the world itself and goes by the axis' name.
  add("tensor", mesh.tensor), add("sequence", mesh.sequence), add("data", mesh.data), add("pipe", mesh.pipe),
      add("world", &world);
  for (const auto* c : {near.get(), across.get()})
    if (c) add(c->name(), c);
  add("pipe activations", activations.get()), add("pipe gradients", gradients.get());
  for (const auto& [unit, group] : tied) add("tied " + unit, group.get());
  return out;
}

void Engine::State::lend_buffers_of_store() {
  if (!options.device.is_cuda() || options.dry) return;
  std::vector<Communicator*> axis = {mesh.data};
  for (Communicator* part : {near.get(), across.get()})
    if (part) axis.push_back(part);
  loan = BufferLoan(std::move(axis), all->store.device_buffers());
}

void Engine::State::name_tracks() {
  if (!options.trace) return;
  options.trace->name(compute, "compute");
  if (config.zero.overlap_comm) options.trace->name(overlapped, "communication");
  if (rows_overlap) options.trace->name(rows, "tensor axis");
  all->store.show_in(*options.trace), all->stage.show_in(*options.trace);
  if (all->optimizer) all->optimizer->show_in(*options.trace, compute);
}

bool Engine::State::update_runs_on() const {
  return options.device.is_cuda() && config.zero.offload_optimizer.device == OffloadDevice::none &&
         config.zero.offload_param.device == OffloadDevice::none;
}

std::string Engine::State::no_graphs() const {
  if (config.cuda_graphs == Switch::off) return "cleave.cuda_graphs is off";
  if (!options.device.is_cuda()) return "this rank computes on the CPU";
  // What NCCL prepares for a captured call lives no longer than the capture; the host transports wait.
  if (world.size() > 1) return "the ranks talk to each other within a pass";
  if (!update_runs_on()) return "state or parameters are offloaded";
  if (config.checkpointing.to_host) return "inputs of layers are kept in host memory";
  if (options.trace) return "its steps are traced or timed";
  return "";
}

void Engine::State::use_graphs() {
  if (options.inference) return;
  const bool asked = config.cuda_graphs == Switch::on;
  const std::string why = no_graphs();
  if (!why.empty()) {
    if (asked) notes.graphs = "CUDA graphs: not used: " + why;
    return;
  }
  if (options.dry) return;
  std::vector<Stream*> streams = {&compute};
  if (config.zero.overlap_comm) streams.push_back(&overlapped);
  graphs = make_graphs(std::move(streams), asked ? Graphs::Use::always : Graphs::Use::measured);
  notes.graphs = asked ? "CUDA graphs: each pass is one"
                      : "CUDA graphs: each pass is one where that is faster in its first steps";
}

void Engine::State::plan_memory() {
  Memory dry({}, Memory::Mode::dry, options.device);
  const Workspaces dry_spaces(dry, config.zero.overlap_comm, rows_overlap);
  const Allocation allocation(config, model, plan, mesh, axes.tensor, near_groups(), *self, dry, compute,
                              comm());
  planned = dry.peak();
  update_bytes = allocation.optimizer ? allocation.optimizer->update_bytes() : UpdateBytes{};
}

bool Engine::State::choose_update() {
  const OffloadConfig& offload = config.zero.offload_optimizer;
  // "auto" is the host where there is no link.
  if (config.offload_update != OffloadUpdate::automatic || offload.device == OffloadDevice::none ||
      options.dry)
    return false;
  if (!options.device.is_cuda()) return false;
  UpdateRates rates;
  agree(
      world,
      [&] {
        rates = measure_update(*make_optimizer(config.optimizer), options.device,
                               offload.pin_memory ? MemoryKind::pinned : MemoryKind::host);
      },
      [](int rank) { return fmt::format("found by rank {}: ", rank); });
  const UpdateTimes times = update_times(update_bytes, rates);
  config.offload_update = times.device < times.host ? OffloadUpdate::device : OffloadUpdate::host;
  notes.update = describe_update(update_bytes, rates);
  return true;
}

void Engine::State::check_plan() {
  agree(
      *mesh.pipe, [&] { check_fits(planned, options.limits); },
      [&](int stage) { return mesh.shape.pipe > 1 ? fmt::format("stage {} of the pipeline: ", stage) : ""; });
}

void Engine::State::agree(Communicator& ranks, const std::function<void()>& check,
                          const std::function<std::string(int rank)>& where) {
  std::string refusal;
  std::vector<int32_t> answers(size_t(2 * ranks.size()), 0);  // of each rank: bytes of its refusal, exit code
  try {
    check();
  } catch (const Error& e) {
    refusal = e.what();
    answers[size_t(2 * ranks.rank())] = int32_t(refusal.size());
    answers[size_t(2 * ranks.rank() + 1)] = int32_t(e.exit());
  }
  ranks.all_reduce(Tensor(answers.data(), DType::int32, {2 * ranks.size()}, MemoryKind::host), early(),
                   {.what = "whether every rank can start"});
  early().synchronize();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (answers[size_t(2 * rank)] == 0) continue;
    refusal.resize(size_t(answers[size_t(2 * rank)]));
    ranks.broadcast(Tensor(refusal.data(), DType::uint8, {int64_t(refusal.size())}, MemoryKind::host), rank,
                    early(), {.what = "which rank cannot start"});
    early().synchronize();
    try {  // nobody leaves before all know; who is left here by a faster one knows, too
      ranks.barrier(early(), {.what = "before leaving"});
      early().synchronize();
    } catch (const Error&) {
    }
    fail(Exit(answers[size_t(2 * rank + 1)]), "{}{}", where(rank), refusal);
  }
}

}  // namespace cleave
