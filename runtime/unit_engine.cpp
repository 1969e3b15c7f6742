#include "runtime/unit_engine.h"

#include <algorithm>
#include <set>

#include "runtime/step/engine_core.h"
#include "zero/recorded_visits.h"

namespace cleave::runtime {
namespace {

struct OutsideComputation : Computation {
  OutsideComputation(const Ranks& ranks, RankState& rank, Streams& streams, Memory& memory)
      : recorded(memory, rank.store, *ranks.mesh().data,
                 {.gathered_numel = rank.store.options().live_numel,
                  .bucket_numel = rank.store.options().reduce_numel},
                 streams.compute, streams.comm()) {
    recorded.commit();
  }
  zero::Visits& visits() override { return recorded; }

  zero::RecordedVisits recorded;
};

}  // namespace

struct UnitEngine::State : EngineCore {
  State(const config::DsConfig& c, RankUnits those, comm::Communicator& world, const UnitOptions& o)
      : EngineCore(c, world, o.engine),
        most_gives(o.gives * int(settings.micros)),
        rates_given(o.rates_given) {
    settings.norm_first = settings.norm_first || rates_given;
    const MeshShape& mesh = settings.mesh;
    require(mesh.pipe * mesh.sequence * mesh.tensor == 1, Exit::usage,
            "{} is driven from outside, and its parameters are whole: pipeline.stages is {}, "
            "sequence_parallel_size {} and tensor_parallel.autotp_size {}; set each to 1",
            those.model, mesh.pipe, mesh.sequence, mesh.tensor);
    require(
        config.freeze.empty(), Exit::usage,
        "cleave.freeze: the units of {}, which is driven from outside, say themselves what is frozen; remove "
        "the key",
        those.model);
    require(config.lora.targets.empty(), Exit::usage,
            "cleave.lora: the layers of {}, which is driven from outside, are not known here; give it units "
            "that are adapters, as peft makes them, and remove the section",
            those.model);
    // Whoever reads or changes a whole parameter there would take rounded ones for the parameter's own.
    require(!settings.store.gathers_int8 || config.zero.stage < 3, Exit::usage,
            "zero_optimization.zero_quantized_weights: {} is driven from outside, where gathered parameters "
            "are also read, saved and changed; remove the key",
            those.model);
    check(o, those);
    gives.resize(those.all.size());
    for (const UnitSpec& u : those.all) groups = std::max(groups, u.group + 1);
    set_units(std::move(those));
  }
  ~State() override { background.reset(), streams.reset(); }

  std::unique_ptr<Computation> computation(RankState& of, Streams& on, Memory& in) const override {
    return std::make_unique<OutsideComputation>(ranks, of, on, in);
  }
  // A checkpoint knows parameters by their names.
  static void check(const UnitOptions& o, const RankUnits& those) {
    CHECK(o.gives >= 1, "UnitOptions::gives is {}; a unit is given once at least", o.gives);
    std::set<std::string> names;
    for (const UnitSpec& u : those.all) {
      require(names.insert("unit " + u.name).second, Exit::usage, "{} has two units {}", those.model, u.name);
      for (const ParamSpec& p : u.params)
        require(names.insert("parameter " + p.name).second, Exit::usage, "{} has two parameters {}",
                those.model, p.name);
    }
  }
  zero::RecordedVisits& recorded() const { return static_cast<OutsideComputation&>(*computes).recorded; }
  int known(int unit) const {
    CHECK(0 <= unit && unit < int(gives.size()), "unit {} of {} of {}", unit, gives.size(), units.model);
    return unit;
  }

  int most_gives;
  bool rates_given;
  int groups = 1;
  std::vector<int> gives;  // of each unit, in this step
  bool in_step = false, in_pass = false;
  bool last = false;  // the pass behind which no other gives gradients was begun
};

UnitEngine::UnitEngine(const config::DsConfig& config, std::string name, std::vector<UnitSpec> units,
                       comm::Communicator& world, const UnitOptions& options)
    : EngineBase(std::make_unique<State>(
          config, whole_units(std::move(name), std::move(units), options.gives), world, options)) {
  core().start();
}
UnitEngine::~UnitEngine() = default;

UnitEngine::State& UnitEngine::state() const { return static_cast<State&>(core()); }
Stream& UnitEngine::stream() { return state().streams->compute; }
int64_t UnitEngine::unforeseen() const { return state().recorded().unforeseen(); }

void UnitEngine::begin_step() {
  State& s = state();
  CHECK(!s.in_step && !s.in_pass, "begin_step: the {} before has not ended", s.in_step ? "step" : "pass");
  s.in_step = true, s.last = false;
  std::fill(s.gives.begin(), s.gives.end(), 0);
  s.EngineCore::begin_step();
}

double UnitEngine::scale() const {
  CHECK(state().in_step, "scale: no step was begun");
  return state().result.loss_scale * state().settings.average.before;
}

bool UnitEngine::gathers(int unit) const {
  return state().rank->store.weights().unit(state().known(unit)).sharding.gathers();
}

void UnitEngine::begin_pass(int kind, bool last) {
  State& s = state();
  CHECK(!s.in_pass, "begin_pass: the pass before has not ended");
  CHECK(s.in_step || !last, "begin_pass: the last pass of no step");
  s.in_pass = true;
  s.last = s.last || last;
  s.recorded().begin_pass(kind, last);
}

void UnitEngine::end_pass() {
  State& s = state();
  CHECK(s.in_pass, "end_pass: no pass was begun");
  s.in_pass = false;
  s.recorded().end_pass();
}

std::vector<Tensor> UnitEngine::acquire(int unit) {
  CHECK(state().in_pass, "acquire: no pass was begun");
  return state().recorded().acquire(state().known(unit));
}

void UnitEngine::release(int unit) { state().recorded().release(state().known(unit)); }

std::vector<zero::GradientSlot> UnitEngine::gradients(int unit) {
  State& s = state();
  CHECK(s.in_step && s.in_pass, "gradients: no {} was begun", s.in_step ? "pass" : "step");
  CHECK(!s.summed, "gradients: those of this step are summed already, for gradient()");
  int& gives = s.gives[size_t(s.known(unit))];
  CHECK(s.rank->store.gradient_form().takes_any_number() || gives < s.most_gives,
        "{} is given more often than {} times a step", s.units.all[size_t(unit)].name, s.most_gives);
  ++gives;
  return s.recorded().gradients(unit);
}

void UnitEngine::give(int unit) { state().recorded().give(state().known(unit)); }
void UnitEngine::complete(int unit) { state().recorded().complete(state().known(unit)); }

std::vector<float> UnitEngine::gradient(const std::string& name) {
  State& s = state();
  require(s.in_step && s.last && !s.in_pass, Exit::usage,
          "the gradient of {} is whole between the last backward of a step and its update: ask for it there",
          name);
  for (const UnitSpec& unit : s.units.all)
    for (const ParamSpec& p : unit.params)
      if (p.name == name) {
        require(!unit.frozen, Exit::usage, "{} is frozen: it has no gradient", name);
        s.sum_gradients();
        return s.EngineCore::gradient(name, p.whole_numel());
      }
  fail(Exit::usage, "the model {} has no parameter {}", s.units.model, name);
}

StepResult UnitEngine::finish_step(std::span<const double> losses, std::span<const optim::Rates> rates) {
  State& s = state();
  CHECK(int(rates.size()) == (s.rates_given ? s.groups : 0), "finish_step: rates of {} groups; wanted {}",
        rates.size(), s.rates_given ? s.groups : 0);
  CHECK(s.in_step && !s.in_pass, "finish_step: {}", s.in_pass ? "a pass has not ended" : "no step was begun");
  s.in_step = false;
  return s.EngineCore::finish_step([&] { return s.mean_over_ranks({losses.begin(), losses.end()}); }, rates);
}

}  // namespace cleave::runtime
