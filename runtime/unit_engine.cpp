#include "runtime/unit_engine.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/phase.h"
#include "core/range.h"
#include "device/copy.h"
#include "kernels/elementwise.h"
#include "runtime/stage/pipeline_cut.h"
#include "runtime/step/engine_core.h"
#include "runtime/units_of_stages.h"
#include "zero/recorded_visits.h"

namespace cleave::runtime {
namespace {

// On a CPU gradient sums use the cores of the passes, so room for more than the largest unit and some small
// ones gains nothing.
int64_t bucket_numel(const zero::StoreOptions& options, const Memory& memory) {
  constexpr int64_t kOnCpu = int64_t{1} << 24;
  return memory.device().is_cuda() ? options.reduce_numel : std::min(options.reduce_numel, kOnCpu);
}

struct OutsideComputation : Computation {
  OutsideComputation(comm::Communicator& rounds, RankState& rank, Streams& streams, Memory& memory)
      : recorded(memory, rank.store, rounds,
                 {.gathered_numel = rank.store.options().live_numel,
                  .bucket_numel = bucket_numel(rank.store.options(), memory),
                  .prefetch_numel = rank.store.options().prefetch_numel},
                 streams.compute, streams.comm()) {
    recorded.commit();
  }
  zero::Visits& visits() override { return recorded; }

  zero::RecordedVisits recorded;
};

// The passes run outside the engine, which then has no rows to cut or to move during products.
config::DsConfig of_outside(config::DsConfig c) {
  c.tensor_parallel.sequence_parallel = c.tensor_parallel.tp_overlap_comm.emplace(false);
  return c;
}

// Returns the units with this rank's parts of the parameters that the tensor axis cuts, and with words as
// elements of the engine's type.
std::vector<UnitSpec> parts_of(std::vector<UnitSpec> units, int rank, int ranks, DType type) {
  for (UnitSpec& unit : units) {
    unit.word *= int(int64_t(sizeof(int64_t)) / size_of(type));
    for (ParamSpec& p : unit.params) {
      if (unit.word > 0) p.shape = {p.numel() * unit.word};
      if (ranks == 1) p.cuts.clear();
      for (Cut& cut : p.cuts) {
        if (!cut.split) continue;
        const int64_t extent = p.shape[size_t(cut.split.dim)];
        CHECK(cut.split.extent() == extent, "{}: blocks of {} elements in a dim of {}", p.name,
              cut.split.extent(), extent);
        for (const int64_t block : cut.split.extents)
          require(block % ranks == 0, Exit::usage,
                  "tensor_parallel.autotp_size: {} cannot be divided (got {} ranks for {} elements in dim "
                  "{}); set a divisor of {}",
                  p.name, ranks, block, cut.split.dim, block);
        cut.split.rank = rank, cut.split.ranks = ranks;
        p.shape[size_t(cut.split.dim)] = extent / ranks;
      }
    }
  }
  return units;
}

}  // namespace

struct UnitEngine::State : EngineCore {
  State(const config::DsConfig& c, const std::string& model, const std::vector<UnitSpec>& those,
        comm::Communicator& world, const UnitOptions& o)
      : EngineCore(of_outside(c), world, o.engine), most_gives(o.gives * int(settings.micros)) {
    may_pause = true;
    settings.has_products = false;
    rounds = ranks.mesh().data->duplicate(cleave::name_of(RankGroup{Axis::data, RankGroup::Purpose::rounds}));
    settings.norm_first = settings.norm_first || o.update;
    if (o.update) {
      settings.outside = o.update;
      settings.state_home.update = offload::UpdateSide::host, settings.measures_update = false;
    }
    const MeshShape& mesh = settings.mesh;
    require(mesh.sequence == 1, Exit::usage,
            "sequence_parallel_size: not supported for PyTorch modules such as {} (got {}, expected 1); "
            "remove the key",
            model, mesh.sequence);
    require(mesh.pipe == 1 || mesh.tensor == 1, Exit::usage,
            "tensor_parallel.autotp_size: cannot be combined with a pipeline of PyTorch modules such as {} "
            "(got {} and {} stages); set one of the two to 1",
            model, mesh.tensor, mesh.pipe);
    require(config.freeze.empty(), Exit::usage,
            "cleave.freeze: the units of {} define frozen parameters themselves; remove the key", model);
    require(config.lora.targets.empty(), Exit::usage,
            "cleave.lora: not supported for {}, because the engine does not know its layers; use PEFT "
            "adapters, and remove the section",
            model);
    require(!config.fp8, Exit::usage,
            "cleave.fp8: the products of {} run outside the engine; remove the section, or set cleave.native "
            "for a supported model family",
            model);
    // External access to gathered parameters would take rounded values for the true ones.
    require(!settings.store.gathers_int8 || config.zero.stage < 3, Exit::usage,
            "zero_optimization.zero_quantized_weights: {} also reads, saves and changes gathered parameters; "
            "remove the key",
            model);
    CHECK(o.gives >= 1, "UnitOptions::gives is {}; a unit is given once at least", o.gives);
    for (const pipeline::InstructionList& list :
         schedule_of(config.pipeline, shape(int(settings.micros))).ranks)
      for (const pipeline::Instruction& i : list)
        require(i.op != pipeline::Op::backward_weight, Exit::usage,
                "pipeline.schedule {}: splits backwards, which the layers of PyTorch modules such as {} do "
                "not support; use 1f1b or interleaved",
                config.pipeline.schedule, model);
    gives.resize(those.size());
    const auto parts = [&](const std::vector<UnitSpec>& of_stage) {
      return parts_of(of_stage, settings.place.tensor, mesh.tensor, settings.dtype);
    };
    std::vector<std::vector<UnitSpec>> stages;
    std::ranges::transform(o.stages, std::back_inserter(stages), parts);
    set_units(units_of_stages(ranks, model, parts(those), stages, o.gives));
    for (const UnitSpec& u : units.all) groups = std::max(groups, u.group + 1);
  }
  ~State() override { background.reset(), streams.reset(); }

  std::unique_ptr<Computation> computation(RankState& of, Streams& on, Memory& in) const override {
    return std::make_unique<OutsideComputation>(*rounds, of, on, in);
  }
  zero::RecordedVisits& recorded() const { return static_cast<OutsideComputation&>(*computes).recorded; }
  int known(int unit) const {
    CHECK(0 <= unit && unit < int(gives.size()), "unit {} of {} of {}", unit, gives.size(), units.model);
    return unit;
  }
  const UnitSpec& held(int unit) const { return units.all[size_t(units.held[size_t(known(unit))])]; }
  pipeline::ScheduleShape shape(int micros) const {
    return {settings.mesh.pipe, micros, config.pipeline.virtual_stages};
  }
  int up() const { return shape(1).up(settings.place.pipe); }
  int down() const { return shape(1).down(settings.place.pipe); }
  // Connects the stages; the size of their messages is only known in the first pass.
  void open_pipe() const {
    const int stage = settings.place.pipe, end = settings.mesh.pipe - 1;
    if (end == 0) return;
    const bool wraps = config.pipeline.virtual_stages > 1;  // the last stage sends to the first
    ranks.open_pipe(stage < end || wraps, stage > 0 || wraps, settings.trains);
  }
  // Returns the shape of a chunk's activations in this walk; calls `tell` if it is unknown or if shapes
  // change.
  std::string& shape_of(std::map<int, std::string>& said, int chunk,
                        const std::function<std::string()>& tell) {
    const auto [shape_at, is_new] = said.emplace(chunk, "");
    if (is_new || shapes_change) shape_at->second = tell();
    return shape_at->second;
  }

  // Runs once, after the last pass of the step.
  void finish_gradients() {
    if (!summed) recorded().finish_gradients();
  }

  std::unique_ptr<comm::Communicator> rounds;  // data ranks, for their hosts
  int most_gives;
  int groups = 1;
  double of_each_micro = 1;  // number of configured micro-batches that one of this step represents
  std::vector<int> gives;    // by unit, in this step
  bool in_step = false, in_pass = false;
  bool gave = false;  // the pass has asked for a gradient
  const char* phase() const { return gave ? "backward" : "forward"; }
  std::map<int, std::string> sent_shapes, received_shapes;  // by chunk, in this walk
  bool shapes_change = false;
  bool last = false;  // the pass before gradient queries has begun
};

UnitEngine::UnitEngine(const config::DsConfig& config, const std::string& name,
                       const std::vector<UnitSpec>& units, comm::Communicator& world,
                       const UnitOptions& options)
    : EngineBase(std::make_unique<State>(config, name, units, world, options)) {
  core().start();
  state().open_pipe();
}
UnitEngine::~UnitEngine() = default;

UnitEngine::State& UnitEngine::state() const { return static_cast<State&>(core()); }
int64_t UnitEngine::unforeseen() const { return state().recorded().unforeseen(); }

pipeline::InstructionList UnitEngine::begin_walk(bool trains, int micros, bool shapes_change) {
  State& s = state();
  s.sent_shapes.clear(), s.received_shapes.clear(), s.shapes_change = shapes_change;
  const pipeline::Schedule all = trains ? schedule_of(s.config.pipeline, s.shape(micros))
                                        : pipeline::make_schedule("forward_only", s.shape(micros));
  return all.ranks[size_t(s.settings.place.pipe)];
}

void UnitEngine::send(Link link, Tensor what) {
  const State& s = state();
  if (link == Link::activation)
    s.ranks.activations().send(what, s.up(), stream(), {.what = name_of(link)});
  else
    s.ranks.gradients().send(what, s.down(), stream(), {.what = name_of(link)});
}

void UnitEngine::receive(Link link, Tensor what) {
  const State& s = state();
  if (link == Link::activation)
    s.ranks.activations().recv(what, s.down(), stream(), {.what = name_of(link)});
  else
    s.ranks.gradients().recv(what, s.up(), stream(), {.what = name_of(link)});
}

// Uses a separate channel: a message waits no longer than the activation after it.
void UnitEngine::send_shape(int chunk, const std::string& shape) {
  State& s = state();
  require(int64_t(shape.size()) <= kShapeBytes, Exit::usage,
          "pipeline stage of {}: its outputs need too many bytes to describe (got {}, expected at most {}); "
          "send fewer tensors",
          s.units.model, shape.size(), kShapeBytes);
  const std::string& said = s.shape_of(s.sent_shapes, chunk, [&] {
    std::string text = shape;
    text.resize(kShapeBytes, ' ');
    Stream host;
    s.ranks.mesh().pipe->send(Tensor(text.data(), DType::uint8, {kShapeBytes}, MemoryKind::host), s.up(),
                              host, {.what = "the shape of activations"});
    return shape;
  });
  require(said == shape, Exit::usage,
          "micro-batch: other activations than earlier ones of the step (got {}, expected {}); drop a "
          "smaller last batch, or set dynamic_shape",
          shape, said);
}

std::string UnitEngine::receive_shape(int chunk) {
  State& s = state();
  return s.shape_of(s.received_shapes, chunk, [&] {
    std::string text(kShapeBytes, ' ');
    Stream host;
    s.ranks.mesh().pipe->recv(Tensor(text.data(), DType::uint8, {kShapeBytes}, MemoryKind::host), s.down(),
                              host, {.what = "the shape of activations"});
    return text.substr(0, text.find_last_not_of(' ') + 1);
  });
}

void UnitEngine::take_first(int unit, Tensor value) {
  state().ranks.take_first(unit < 0 ? std::string() : state().held(unit).name, value);
}

void UnitEngine::begin_step(int micros) {
  State& s = state();
  require(micros <= s.settings.micros || !s.config.exact_sums, Exit::usage,
          "cleave.exact_sums: too many micro-batches in a step (got {}, expected at most {})", micros,
          s.settings.micros);
  s.of_each_micro = micros > 0 ? double(s.settings.micros) / micros : 1;
  CHECK(!s.in_step && !s.in_pass, "begin_step: the {} before has not ended", s.in_step ? "step" : "pass");
  s.in_step = true, s.last = false;
  std::fill(s.gives.begin(), s.gives.end(), 0);
  s.EngineCore::begin_step();
}

double UnitEngine::scale() const {
  CHECK(state().in_step, "scale: no step was begun");
  return state().result.loss_scale * state().settings.average.before * state().of_each_micro;
}

bool UnitEngine::gathers(int unit) const {
  return state().rank->store.weights().unit(state().known(unit)).sharding.gathers();
}

void UnitEngine::begin_pass(int kind, bool last) {
  State& s = state();
  CHECK(!s.in_pass, "begin_pass: the pass before has not ended");
  CHECK(s.in_step || !last, "begin_pass: the last pass of no step");
  s.in_pass = true, s.gave = false;
  const PhaseMark phase(s.phase());
  s.last = s.last || last;
  s.recorded().begin_pass(kind, last);
}

void UnitEngine::end_pass() {
  State& s = state();
  CHECK(s.in_pass, "end_pass: no pass was begun");
  const PhaseMark phase(s.phase());
  s.in_pass = false;
  require(
      s.recorded().end_pass(), Exit::training,
      "backward: failed on another rank, so the gradients of this step are incomplete; see the error there, "
      "and skip the batch on all ranks or stop");
}

void UnitEngine::abandon_pass() {
  State& s = state();
  CHECK(s.in_pass, "abandon_pass: no pass was begun");
  s.in_pass = false;
  s.recorded().end_pass(true);
}

std::vector<Tensor> UnitEngine::acquire(int unit) {
  const PhaseMark phase(state().phase());
  CHECK(state().in_pass, "acquire: no pass was begun");
  return state().recorded().acquire(state().known(unit));
}

void UnitEngine::release(int unit) {
  const PhaseMark phase(state().phase());
  state().recorded().release(state().known(unit));
}

std::vector<zero::GradientSlot> UnitEngine::gradients(int unit) {
  State& s = state();
  s.gave = true;
  CHECK(s.in_step && s.in_pass, "gradients: no {} was begun", s.in_step ? "pass" : "step");
  require(!s.summed, Exit::usage,
          "backward: the gradient of this step was already read, which completes it; read it after the last "
          "backward");
  int& gives = s.gives[size_t(s.known(unit))];
  require(
      s.rank->store.gradient_form().takes_any_number() || gives < s.most_gives, Exit::usage,
      "cleave.exact_sums: {} has too many gradients in a step (expected at most {}, {} per micro-batch); add "
      "losses before their backward, or accumulate over more micro-batches",
      s.held(unit).name, s.most_gives, s.most_gives / int(s.settings.micros));
  ++gives;
  return s.recorded().gradients(unit);
}

void UnitEngine::give(int unit) {
  const PhaseMark phase(state().phase());
  state().recorded().give(state().known(unit));
}
void UnitEngine::complete(int unit) {
  const PhaseMark phase(state().phase());
  state().recorded().complete(state().known(unit));
}

void UnitEngine::finish_gradients(const std::string& name) {
  State& s = state();
  require(s.in_step && s.last && !s.in_pass, Exit::usage,
          "gradient of {}: complete only between the last backward of a step and its update; read it there",
          name);
  s.finish_gradients();
}

std::vector<float> UnitEngine::gradient(const std::string& name) {
  finish_gradients(name);
  return state().whole_gradient(name);
}

std::vector<float> UnitEngine::own_gradient(const std::string& name) {
  State& s = state();
  require(
      s.in_step && !s.last && !s.in_pass, Exit::usage,
      "gradient of {}: a rank has its own only between the first backward of a step and the last one; read "
      "it there",
      name);
  return s.EngineCore::own_gradient(name);
}

void UnitEngine::discard_gradients() {
  State& s = state();
  CHECK(s.in_step && !s.summed && !s.in_pass, "discard_gradients: not between the passes of a step");
  s.last = false;
  std::fill(s.gives.begin(), s.gives.end(), 0);
  s.recorded().discard_gradients();
}

void UnitEngine::write_gradient(const std::string& name, std::span<const float> whole) {
  finish_gradients(name);
  state().write_whole_gradient(name, whole);
}

void UnitEngine::wait_with_updates(bool waits) {
  CHECK(!state().in_step, "wait_with_updates: called inside a step");
  state().waits = waits;
}

void UnitEngine::show_gradients() {
  finish_gradients("all parameters");
  state().show_gradients();
}

std::vector<Tensor> UnitEngine::shown_gradients(int unit) {
  State& s = state();
  CHECK(s.shown, "shown_gradients: show_gradients was not called in this step");
  const zero::GradientShards& gradients = s.rank->store.gradients();
  const zero::StoredUnit& stored = gradients.unit(s.known(unit));
  std::vector<Tensor> out;
  for (int p = 0; gradients.trains(unit) && p < stored.layout.params(); ++p)
    out.push_back(stored.view(p, gradients.whole(unit)));
  return out;
}

void UnitEngine::pause(std::span<const std::string> names) {
  CHECK(!state().in_pass, "pause: called inside a pass");
  state().EngineCore::pause(names);
}

void UnitEngine::offload_states(bool masters, bool states, bool pinned) {
  State& s = state();
  require(!s.in_step, Exit::usage, "offload_states: called inside a step; call it after engine.step()");
  require(!s.options.inference, Exit::usage, "offload_states: this engine has no optimizer state");
  synchronize();
  zero::ShardedOptimizer& optimizer = s.rank->optimizer();
  const int kinds = int(optimizer.kinds().size());
  optimizer.leave_device({masters ? 0 : 1, states ? kinds : 1},
                         pinned ? MemoryKind::pinned : MemoryKind::host, s.streams->compute);
}

void UnitEngine::reload_states() {
  State& s = state();
  if (!s.options.inference) s.rank->optimizer().return_to_device(s.streams->compute);
}

std::string UnitEngine::position() {
  synchronize();
  return to_json(state().EngineCore::position(), state().scaler.state(), state().options.seed, "{}");
}

void UnitEngine::set_position(const std::string& position, std::span<const std::string> fresh) {
  const Restored to = from_json(position, "the position of a training");
  state().EngineCore::set_position(to.at, fresh);
  if (state().settings.scales_loss && to.scaler) state().scaler.restore(*to.scaler);
}

StepResult UnitEngine::finish_step(std::span<const double> losses, std::span<const optim::Rates> rates) {
  State& s = state();
  const int wanted = s.options.rates_given ? s.groups : 0;
  CHECK(int(rates.size()) == wanted, "finish_step: wrong number of rate groups (got {}, expected {})",
        rates.size(), wanted);
  CHECK(s.in_step && !s.in_pass, "finish_step: {}", s.in_pass ? "a pass has not ended" : "no step was begun");
  s.in_step = false;
  s.finish_gradients();
  // The ranks of a tensor axis have the same losses; the first one reports them.
  std::vector<double> each;
  if (s.settings.place.tensor == 0) each.assign(losses.begin(), losses.end());
  if (const auto micros = size_t(s.settings.micros); !each.empty() && each.size() != micros)
    each.assign(micros, std::accumulate(each.begin(), each.end(), 0.0) / double(each.size()));
  return s.EngineCore::finish_step([&] { return s.mean_over_ranks(each); }, rates);
}

}  // namespace cleave::runtime
