#include "runtime/engine_state.h"

#include <algorithm>

#include "device/copy.h"

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

// How many consecutive ranks of the data axis gather parameters among themselves; 0: no such groups.
int near_ranks(const ZeroConfig& z) {
  if (z.stage != 3) return 0;
  return int(z.mics_shard_size > 0           ? z.mics_shard_size
             : z.zero_hpz_partition_size > 1 ? z.zero_hpz_partition_size
                                             : 0);
}

ZeroPlan zero_plan(const DsConfig& config, const UnitSpec& unit, Communicator& data, const NearGroups& near,
                   Communicator& self) {
  const ZeroPlan plan = !near.near                        ? plan_for_stage(config.zero.stage, data, self)
                        : config.zero.mics_shard_size > 0 ? hybrid_plan(near, self)
                                                          : nested_plan(near, self);
  plan.check(data.size());
  int64_t numel = 0;
  for (const ParamSpec& p : unit.params) numel += p.numel();
  // A nested plan publishes across: it has no group to keep a unit whole with.
  const bool can = plan.parameter_shards() > 1 && plan.gather_on_publish->size() == 1;
  const bool whole = can && numel < config.zero.stage3_param_persistence_threshold;
  return whole ? with_whole_parameters(plan, self) : plan;
}

}  // namespace

DType model_dtype(const DsConfig& config) { return dtype_of(config.precision); }

Allocation::Allocation(const DsConfig& config, const Model& model, const PipelinePlan& plan, const Mesh& mesh,
                       const NearGroups& near, Communicator& self, Memory& memory, Stream& compute,
                       Stream& comm)
    : store(memory, store_options(config), compute, comm),
      stage(model, plan.stages[size_t(mesh.place.pipe)], store, config.train_micro_batch_size_per_gpu,
            [&](const UnitSpec& unit) { return zero_plan(config, unit, *mesh.data, near, self); }),
      optimizer(memory, store, make_optimizer(config.optimizer), placement(config)) {
  store.commit();
  stage.allocate(memory);
  const auto device = MemoryKind::device;
  squares = memory.allocate(device, Category::activations, DType::fp64, {store.units()}, "squared gradients");
  losses =
      memory.allocate(device, Category::activations, DType::fp64, {plan.evaluation.shape.micros}, "losses");
}

Engine::State::State(const DsConfig& c, Model m, Communicator& w, const EngineOptions& o)
    : config(c),
      model(std::move(m)),
      world(w),
      mesh(w, mesh_shape(c, w.size())),
      plan(plan_pipeline(c, model)),
      self(self_communicator()),
      activations(mesh.pipe->duplicate("pipe activations")),
      gradients(mesh.pipe->duplicate("pipe gradients")),
      options(o),
      memory(o.limits, o.dry ? Memory::Mode::dry : Memory::Mode::real, o.device),
      compute(o.dry ? Device{} : o.device, o.dry ? Stream::Mode::dry : o.compute),
      overlapped(o.dry ? Device{} : o.device, o.dry                 ? Stream::Mode::dry
                                              : c.zero.overlap_comm ? Stream::Mode::worker
                                                                    : Stream::Mode::inline_),
      schedule(c.scheduler, c.optimizer.lr),
      scaler(c.precision == Precision::fp16 ? LossScaler(c.fp16, c.zero.stage) : LossScaler()) {
  if (const int n = near_ranks(c.zero); n > 0) {
    const int place = mesh.place.data, data = mesh.shape.data;
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
  add("tensor", mesh.tensor), add("data", mesh.data), add("pipe", mesh.pipe), add("world", &world);
  for (const auto* c : {near.get(), across.get()})
    if (c) add(c->name(), c);
  add("pipe activations", activations.get()), add("pipe gradients", gradients.get());
  for (const auto& [unit, group] : tied) add("tied " + unit, group.get());
  return out;
}

void Engine::State::check_plan() {
  std::string refusal;
  try {
    check_fits(planned, options.limits);
  } catch (const Error& e) {
    refusal = e.what();
  }
  std::vector<int32_t> lengths(size_t(mesh.shape.pipe), 0);
  lengths[size_t(mesh.place.pipe)] = int32_t(refusal.size());
  mesh.pipe->all_reduce(Tensor(lengths.data(), DType::int32, {mesh.shape.pipe}, MemoryKind::host), comm(),
                        {.what = "whether every stage fits"});
  comm().synchronize();
  for (int stage = 0; stage < mesh.shape.pipe; ++stage) {
    if (lengths[size_t(stage)] == 0) continue;
    refusal.resize(size_t(lengths[size_t(stage)]));
    mesh.pipe->broadcast(Tensor(refusal.data(), DType::uint8, {int64_t(refusal.size())}, MemoryKind::host),
                         stage, comm(), {.what = "which stage does not fit"});
    comm().synchronize();
    fail(Exit::memory, "{}{}", mesh.shape.pipe > 1 ? fmt::format("stage {} of the pipeline: ", stage) : "",
         refusal);
  }
}

void Engine::State::sum_tied_gradients() {
  comm().wait(compute.record());
  for (const auto& [name, group] : tied)
    for (int u = 0; u < all->store.units(); ++u)
      if (all->store.layout(u).name() == name)
        group->all_reduce(all->store.gradient_slice(u), comm(), {.what = name});
  compute.wait(comm().record());
}

double Engine::State::squared_norm() {
  all->optimizer.square_gradients(all->squares, compute);
  all->store.sum_over_slices(all->squares);
  const std::vector<double> mine = to_host<double>(all->squares, compute);
  // One place a unit of the model, so that the sum has one order wherever the pipe is cut; a unit that
  // several stages hold counts on one of them.
  std::vector<double> squares(plan.units.size(), 0);
  for (int u = 0; u < all->store.units(); ++u)
    if (speaks_for(u)) squares[size_t(plan.index_of(all->store.layout(u).name()))] = mine[size_t(u)];
  mesh.pipe->all_reduce(Tensor(squares.data(), DType::fp64, {int64_t(squares.size())}, MemoryKind::host),
                        comm(), {.what = "squared gradient norm"});
  comm().synchronize();
  double sum = 0;
  for (const double x : squares) sum += x;
  return sum;
}

double Engine::State::sum_over_ranks(double value, std::string_view what) {
  world.all_reduce(Tensor(&value, DType::fp64, {1}, MemoryKind::host), comm(), {.what = what});
  comm().synchronize();
  return value;
}

}  // namespace cleave
