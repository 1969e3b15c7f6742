// Engines: creation, facts and state.
#include "python/capi/engine.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "comm/together.h"
#include "config_schema/summary.h"
#include "core/json.h"
#include "core/json_path.h"
#include "core/units.h"
#include "device/gpu_problems.h"
#include "launcher/job.h"
#include "plan/machine_memory.h"
#include "plan/unit_plan.h"
#include "python/capi/call.h"
#include "python/capi/dlpack.h"
#include "python/capi/job.h"
#include "python/capi/model_engine.h"
#include "runtime/engine.h"
#include "runtime/saved_training.h"

using namespace cleave;
using capi::call, capi::given, capi::handed_over;

namespace cleave::capi {
namespace {

using Json = nlohmann::json;

int64_t words_of(int64_t bytes) { return ceil_div(bytes, int64_t{sizeof(int64_t)}); }

// Merges the fourth and all later dims: engine shapes have at most four dims, and only the first and the
// number of elements are used.
std::vector<int64_t> shape_of(std::vector<int64_t> shape) {
  if (shape.empty()) return {1};
  for (; shape.size() > 4; shape.pop_back()) shape[shape.size() - 2] *= shape.back();
  return shape;
}

ParamSpec spec_of(const Json& p) {
  ParamSpec spec{.name = p.at(0), .shape = shape_of(p.at(1)), .init = {}, .decay = p.at(2)};
  require(spec.numel() > 0, Exit::usage, "parameter {}: has no elements; remove it", spec.name);
  if (p.size() > 4 && !p[4].is_null()) {
    const Json& cut = p[4];
    spec.cuts.push_back({Axis::tensor, {}});
    if (!cut.empty()) spec.cuts.back().split = {.dim = cut.at(0), .extents = cut.at(1)};
  }
  return spec;
}

std::vector<UnitSpec> units_of(const Json& given) {
  std::vector<UnitSpec> out;
  for (const Json& unit : given) {
    UnitSpec& spec = out.emplace_back();
    spec.name = unit.at("name"), spec.frozen = unit.at("frozen"), spec.group = unit.at("group");
    spec.whole = unit.value("whole", false), spec.word = unit.value("bytes", false) ? 1 : 0;
    for (const Json& p : unit.at("parameters")) spec.params.push_back(spec_of(p));
  }
  return out;
}

// Parses the declared units, by stage.
std::vector<std::vector<UnitSpec>> stages_of(const char* units) {
  const Json given = parse_json(units, "the units of a model", Exit::usage);
  try {
    if (given.empty() || !given[0].is_array()) return {units_of(given)};
    std::vector<std::vector<UnitSpec>> out;
    for (const Json& stage : given) out.push_back(units_of(stage));
    return out;
  } catch (const Json::exception& e) {
    fail(Exit::usage, "the units of a model: {}", without_number(e.what()));
  }
}

optim::OutsideUpdate update_of(const cleave_engine_options& o, Device device,
                               const std::shared_ptr<CallerStream>& caller) {
  std::vector<std::string> states;
  for (int s = 0; s < o.state_count; ++s) states.emplace_back(&given(o.states[s], "a state's name"));
  require(int(states.size()) <= optim::kMostStates, Exit::usage,
          "optimizer: too many values per element (got {}, expected at most {})", states.size(),
          optim::kMostStates);
  const auto update = [run = o.update, context = o.update_context, device, caller](
                          const optim::UpdateSlice& s, const optim::StepArgs& args, Stream& stream) {
    const bool there = device.is_cuda() && s.param.memory() == MemoryKind::device;
    cleave_update part{.unit = s.unit,
                       .parameter = s.parameter,
                       .begin = s.elements.begin,
                       .end = s.elements.end,
                       .step = args.step,
                       .on_host = device.is_cuda() && !there,
                       .gradient_dtype = int32_t(s.grad.dtype()),
                       .gradient_scale = args.grad_scale,
                       .value = s.param.as<float>(),
                       .gradient = s.grad.raw(),
                       .states = {}};
    for (size_t k = 0; k < s.state.size(); ++k)
      if (s.state[k].defined()) part.states[k] = s.state[k].as<float>();
    if (there) caller->after(stream);
    require(run(context, &part) == 0, Exit::usage, "optimizer: the update function of the script failed");
    if (there) caller->before(stream);
  };
  return {std::move(states), update};
}

runtime::UnitOptions options_of(const cleave_engine_options& o, Device device,
                                const std::shared_ptr<CallerStream>& caller) {
  runtime::UnitOptions options{.gives = std::max(1, int(o.gives))};
  options.engine.rates_given = o.rates_given != 0;
  options.engine.seed = o.seed;
  options.engine.weights_follow = true;
  options.engine.device = device;
  options.engine.inference = o.inference != 0;
  options.engine.scales_loss = o.scales_loss != 0;
  if (o.device_bytes > 0) options.engine.limits.device_bytes = o.device_bytes;
  if (o.host_bytes > 0) options.engine.limits.host_bytes = o.host_bytes;
  if (o.has_stream) options.engine.cuda_stream = o.stream;
  if (o.update) options.update = update_of(o, device, caller);
  return options;
}

config::ReadResult read(const char* config, const char* name, const config::ReadOptions& options) {
  config::ReadResult read =
      config::read_ds_config(&given(config, "config"), &given(name, "config_name"), options);
  require(read.ok(), Exit::usage, "{}: has errors:\n{}", name, config::format(read.problems));
  return read;
}

// Parsed arguments of an engine or a plan.
struct Made {
  Made(config::ReadResult its_read, const char* its_name, const char* its_units,
       const cleave_engine_options& o, Device device)
      : read(std::move(its_read)),
        config(read.config),
        name(&given(its_name, "model")),
        stages(stages_of(&given(its_units, "units"))),
        caller(o.has_stream ? std::make_shared<CallerStream>(device, o.stream) : nullptr),
        options(options_of(o, device, caller)) {
    options.engine.updates_last = o.model_config != nullptr;
    require(!o.model_config || !o.update, Exit::usage,
            "cleave.native: the optimizer has no kernel in the engine; use AdamW, Adam, SGD, Adagrad or "
            "Lion, or remove cleave.native");
    if (o.model_config) twin.emplace(config, name, o.model_config, stages.front());
  }
  plan::JobPlan plan(int world, plan::PlanRanks ranks) const {
    return twin ? plan::plan_job(twin->config, world,
                                 [this](comm::Communicator& each, runtime::EngineOptions o) {
                                   o.device = options.engine.device, o.updates_last = true,
                                   o.rates_given = options.engine.rates_given;
                                   return twin->engine(each, o);
                                 },
                                 {.ranks = ranks})
                : plan::plan_units(config, name, stages, options, world, ranks);
  }
  std::unique_ptr<cleave_engine> engine(comm::Communicator& ranks) const {
    auto reports = std::make_unique<Reports>(config, ranks);
    runtime::UnitOptions traced = options;
    traced.engine.trace = reports->trace();
    std::unique_ptr<cleave_engine> made;
    if (twin) {
      made = std::make_unique<ModelEngine>(*twin, reports->world(), traced.engine);
    } else {
      CHECK(stages.size() == 1, "an engine is of one rank's units; got those of {} stages", stages.size());
      made = std::make_unique<UnitEngine>(config, name.c_str(), stages.front(), reports->world(), traced);
    }
    made->reports = std::move(reports);
    return made;
  }

  config::ReadResult read;
  config::DsConfig config;
  std::string name;
  std::vector<std::vector<UnitSpec>> stages;  // one stage only, for an engine
  std::shared_ptr<CallerStream> caller;       // null on a CPU
  runtime::UnitOptions options;
  std::optional<runtime::TwinModel> twin;  // set if the engine computes the model
};

// Returns the inputs of an engine that must be equal on all ranks. Parameters of a pipeline belong
// to a stage; its ranks compare them with each other (runtime/units_of_stages.h).
comm::Facts facts_of(const Made& made, const char* units, const cleave_engine_options& o) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  comm::Facts facts = {{"the model", made.name},
                       {"the seed", number(o.seed)},
                       {"the optimizer's states",
                        o.update ? fmt::format("{}", fmt::join(made.options.update->states, ", ")) : ""},
                       {"the model's config", o.model_config ? o.model_config : ""}};
  for (const auto& [name, value] : {std::pair{"rates_given", o.rates_given},
                                    {"inference", o.inference},
                                    {"scales_loss", o.scales_loss},
                                    {"gives", o.gives}})
    facts.emplace_back(name, number(value));
  for (auto& value : config::compared_values(made.config)) facts.push_back(std::move(value));
  if (made.config.pipeline.stages > 1) return facts;
  for (const Json& unit : parse_json(units, "the units of a model", Exit::usage))
    for (const Json& p : unit.at("parameters")) {
      const std::string rates = unit.at("frozen").get<bool>() ? "frozen" : "group " + unit.at("group").dump();
      facts.emplace_back("parameter " + p.at(0).get<std::string>(),
                         fmt::format("shape {}, {}{}{}{}", p.at(1).dump(), rates,
                                     p.at(2).get<bool>() ? ", weight decay" : "",
                                     p.size() > 3 ? ", " + p.at(3).get<std::string>() : "",
                                     p.size() > 4 && !p[4].is_null() ? ", cut " + p[4].dump() : ""));
    }
  return facts;
}

Json json_of(const MemoryTable& table) {
  Json out = Json::object();
  for (int k = 0; k < kMemoryKinds; ++k)
    for (int c = 0; c < kCategories; ++c)
      if (const int64_t bytes = table.bytes[size_t(k)][size_t(c)])
        out[std::string(name_of(MemoryKind(k)))][std::string(name_of(Category(c)))] = bytes;
  return out;
}

constexpr std::string_view kGradient = "gradient";  // valid within a step

// Returns the number of a state that an update keeps, by its name.
int kind_of(cleave_engine& e, const char* name) {
  const std::vector<std::string> kinds = e.base().kinds();
  const auto at = std::find(kinds.begin(), kinds.end(), &given(name, "kind"));
  require(at != kinds.end(), Exit::usage, "parameter: unknown state (expected one of {}, got {})",
          fmt::join(kinds, ", "), name);
  return int(at - kinds.begin());
}

std::string facts_of(cleave_engine& e) {
  const runtime::EngineBase& engine = e.base();
  Json mesh, place;
  for (const MeshAxis& a : kMeshAxes) {
    const std::string axis(name_of(a.axis));
    mesh[axis] = engine.mesh().*a.size, place[axis] = engine.place().*a.place;
  }
  return Json{{"step", engine.step()},
              {"skipped", engine.skipped()},
              {"params", engine.params()},
              {"dtype", std::string(name_of(runtime::model_dtype(engine.config())))},
              {"mesh", mesh},
              {"place", place},
              {"parameters", e.shapes()},
              {"optimizer_is_new", engine.optimizer_is_new()},
              {"planned", json_of(engine.memory_planned())},
              {"live", json_of(engine.memory_live())},
              {"peak", json_of(engine.memory_peak())},
              {"notes", engine.notes().lines()},
              {"kinds", engine.kinds()},
              {"units", engine.describe_units()},
              {"unforeseen", e.unforeseen()},
              {"vocabulary", e.vocabulary()},
              {"loss_scale", engine.loss_scale()},
              {"reports", e.reports->wants_steps()}}
      .dump();
}

// Returns the bytes that PyTorch needs on a GPU in addition to the activations that it keeps: workspaces of
// its libraries, the gradient of the largest parameter and a value of the same size, and blocks of its
// allocator that do not fit the activations.
int64_t torch_reserve(const Made& made, int64_t activations) {
  constexpr int64_t kWorkspaces = int64_t{64} << 20, kPartUnused = 8;
  int64_t largest = 0;
  for (const std::vector<UnitSpec>& units : made.stages)
    for (const UnitSpec& unit : units)
      for (const ParamSpec& p : unit.params) largest = std::max(largest, p.numel());
  return kWorkspaces + 2 * largest * size_of(runtime::model_dtype(made.config)) + activations / kPartUnused;
}

Json json_of(const plan::JobPlan& plan, int ranks_per_host, int64_t activations,
             const plan::GpuReserve& reserve) {
  Json ranks = Json::array();
  for (const plan::RankPlan& r : plan.ranks)
    ranks.push_back({{"ranks", r.ranks}, {"memory", json_of(r.memory)}});
  const int here = std::min(ranks_per_host, plan.mesh.size());
  const int64_t per_host = plan::bytes_of(plan, 0, here, true);
  std::string table = plan::format(plan);
  table +=
      fmt::format("{} {} on a host hold {}\n", here, here == 1 ? "rank" : "ranks", format_bytes(per_host));
  if (activations >= 0)
    table += fmt::format("of activations, {} are what torch keeps of a micro-batch for its backward\n",
                         format_bytes(activations));
  table += reserve.line(plan::most_device_bytes(plan));
  return {{"model", plan.model},
          {"parameters", plan.params},
          {"world_size", plan.mesh.size()},
          {"ranks", ranks},
          {"per_host", per_host},
          {"activations", activations >= 0 ? Json(activations) : Json()},
          {"reserve",
           {{"cuda", reserve.cuda},
            {"nccl", reserve.nccl},
            {"torch", reserve.torch ? Json(*reserve.torch) : Json()}}},
          {"table", table}};
}

}  // namespace

UnitEngine::UnitEngine(const config::DsConfig& config, const char* model, std::vector<UnitSpec> its_units,
                       comm::Communicator& world, const runtime::UnitOptions& options)
    : units(std::move(its_units)), engine(config, model, units, world, options) {}

std::map<std::string, std::vector<int64_t>> UnitEngine::shapes() {
  std::map<std::string, std::vector<int64_t>> out;
  for (const ParamSpec& p : engine.parameters()) out[p.name] = p.whole_shape();
  return out;
}

std::vector<void*> UnitEngine::acquire(int unit) {
  std::vector<void*> out;
  for (const Tensor& t : engine.acquire(unit)) out.push_back(t.raw());
  return out;
}

runtime::SavedTraining UnitEngine::opened(const std::string& folder, const std::string& tag) {
  runtime::SavedTraining saved(folder, tag);
  saved.as_published();
  return saved;
}

int call(cleave_engine* engine, const std::function<void(cleave_engine&)>& body) {
  return call([&] {
    cleave_engine& e = given(engine, "engine");
    if (e.caller) e.caller->before(e.base().stream());
    body(e);
    if (e.caller) e.caller->after(e.base().stream());
  });
}

UnitEngine& unit_engine(cleave_engine& engine) {
  auto* its = dynamic_cast<UnitEngine*>(&engine);
  CHECK(its, "the engine computes by itself: it has no units to drive");
  return *its;
}

}  // namespace cleave::capi

int cleave_engine_make(cleave_job* job, const char* config, const char* config_name, const char* model,
                       const char* units, const cleave_engine_options* options, cleave_engine** engine) {
  return call([&] {
    cleave_job& j = given(job, "job");
    const capi::Made made(capi::read(config, config_name, j.job.read_options()), model, units,
                          given(options, "options"), j.job.device());
    comm::require_alike(j.connected(), capi::facts_of(made, units, *options));
    if (made.config.pipeline.stages == 1) {
      const comm::RankInfo& me = j.job.info();
      // Every rank checks its own host, with the plan of one rank, so that the cost does not grow with the
      // job.
      plan::require_machine_fit(made.plan(me.world, plan::PlanRanks::of_stages), me.rank - me.local_rank,
                                me.local_size, !j.job.device().is_cuda());
    }
    // A forked child must not end the parent's engine.
    const std::shared_ptr<cleave_engine> e(made.engine(j.connected()).release(),
                                           [owner = getpid()](cleave_engine* last) {
                                             if (getpid() == owner) delete last;
                                           });
    if (made.caller) made.caller->computes_on(e->base().stream());
    e->caller = made.caller;
    e->reports->open_files(made.read, made.name, e->base());
    j.engines.push_back(e);
    e->handle = e;
    given(engine, "engine") = e.get();
    if (made.config.save_on_stop) launcher::Job::catch_signals();
  });
}

int cleave_plan(const char* config, const char* config_name, const char* model, const char* units,
                const cleave_engine_options* options, int32_t world, int32_t ranks_per_host,
                int64_t activations, char** plan) {
  return call([&] {
    require(world >= 1 && ranks_per_host >= 1, Exit::usage,
            "plan: too few ranks (got {} ranks, {} per host, expected at least 1 of each)", world,
            ranks_per_host);
    const capi::Made made(capi::read(config, config_name, {.world_size = world, .world_origin = "the plan"}),
                          model, units, given(options, "options"), Device{});
    plan::JobPlan planned = made.plan(world, plan::PlanRanks::all);
    for (plan::RankPlan& r : planned.ranks)
      r.memory.at(MemoryKind::device, Category::activations) += std::max<int64_t>(0, activations);
    planned.check_fits(made.options.engine.limits);
    plan::GpuReserve reserve = plan::gpu_reserve(planned);
    reserve.torch.reset();
    if (activations >= 0) reserve.torch = capi::torch_reserve(made, activations);
    given(plan, "plan") = handed_over(capi::json_of(planned, ranks_per_host, activations, reserve).dump());
  });
}

int cleave_use_stream(cleave_engine* engine, void* stream) {
  return call([&] {
    cleave_engine& e = given(engine, "engine");
    if (e.caller) e.caller->use(stream);
  });
}

void cleave_engine_free(cleave_engine* engine) {
  if (!engine) return;
  engine->reports->close(&engine->base());  // tensors may keep the engine
  const std::shared_ptr<cleave_engine> last = std::move(engine->handle);
}

int cleave_engine_facts(cleave_engine* engine, char** facts) {
  return call(engine, [&](cleave_engine& e) { given(facts, "facts") = handed_over(capi::facts_of(e)); });
}

int cleave_get_state(cleave_engine* engine, const char* kind, const char* parameter, float* value) {
  return call(engine, [&](cleave_engine& e) {
    const std::string name = &given(parameter, "parameter");
    const std::vector<float> whole = &given(kind, "kind") == capi::kGradient
                                         ? e.gradient(name)
                                         : e.parameter(name, capi::kind_of(e, kind));
    std::copy(whole.begin(), whole.end(), &given(value, "value"));
  });
}

int cleave_own_master(cleave_engine* engine, const char* parameter, float* value) {
  return call(engine, [&](cleave_engine& e) {
    const std::vector<float> whole = e.own_master(&given(parameter, "parameter"));
    std::copy(whole.begin(), whole.end(), &given(value, "value"));
  });
}

int cleave_put_state(cleave_engine* engine, const char* kind, const char* parameter, int64_t count,
                     float* value) {
  return call(engine, [&](cleave_engine& e) {
    const std::string name = &given(parameter, "parameter");
    const std::span<float> whole{&given(value, "value"), size_t(count)};
    if (&given(kind, "kind") == capi::kGradient)
      e.write_gradient(name, whole);
    else
      e.write_parameter(name, whole, capi::kind_of(e, kind));
  });
}

int cleave_publish(cleave_engine* engine) {
  return call(engine, [&](cleave_engine& e) { e.base().publish_parameters(); });
}

int cleave_get_bytes(cleave_engine* engine, const char* parameter, int64_t bytes, void* value) {
  return call(engine, [&](cleave_engine& e) {
    const std::string name = &given(parameter, "parameter");
    const std::vector<int64_t> words = e.base().bits(name);
    CHECK(int64_t(words.size()) == capi::words_of(bytes), "{} has {} words, got {} bytes", name, words.size(),
          bytes);
    std::memcpy(&given(static_cast<char*>(value), "value"), words.data(), size_t(bytes));
  });
}

int cleave_put_bytes(cleave_engine* engine, const char* parameter, int64_t bytes, const void* value) {
  return call(engine, [&](cleave_engine& e) {
    std::vector<int64_t> words(size_t(capi::words_of(bytes)));
    std::memcpy(words.data(), &given(static_cast<const char*>(value), "value"), size_t(bytes));
    e.base().write_bits(&given(parameter, "parameter"), words);
  });
}

int cleave_save_checkpoint(cleave_engine* engine, const char* folder, const char* tag, const char* client) {
  return call(engine, [&](cleave_engine& e) {
    const std::string to = &given(folder, "folder");
    e.base().save_checkpoint(
        to, &given(tag, "tag"), e.kept(client ? client : "{}"),
        [to, reports = e.reports.get(), step = e.base().step(),
         begin = std::chrono::steady_clock::now()](const checkpoint::SavedCheckpoint& saved) {
          reports->checkpointed(monitor::Checkpointed::Kind::save, to + "/" + saved.name, step, begin);
        });
  });
}

int cleave_finish_save(cleave_engine* engine) {
  return call(engine, [&](cleave_engine& e) { e.base().finish_save(); });
}

int cleave_load_checkpoint(cleave_engine* engine, const char* folder, const char* tag, int32_t parts,
                           char** loaded) {
  return call(engine, [&](cleave_engine& e) {
    std::string path;
    const auto begin = std::chrono::steady_clock::now();
    const auto open = [&] {
      runtime::SavedTraining saved = e.opened(&given(folder, "folder"), &given(tag, "tag"));
      path = saved.path().string();
      return saved;
    };
    const std::string client =
        e.base().load_checkpoint(open, {.optimizer = (parts & CLEAVE_LOAD_OPTIMIZER) != 0,
                                        .schedule = (parts & CLEAVE_LOAD_SCHEDULE) != 0,
                                        .steps = (parts & CLEAVE_LOAD_STEPS) != 0});
    e.reports->checkpointed(monitor::Checkpointed::Kind::load, path, e.base().step(), begin);
    given(loaded, "loaded") = handed_over(capi::Json{{"path", path_in_json(path)},
                                                     {"changed", e.base().changed_settings()},
                                                     {"client", parse_json(client, path, Exit::checkpoint)}}
                                              .dump());
  });
}

int cleave_dlpack(cleave_engine* engine, void* data, int32_t dtype, const int64_t* shape, int32_t dims,
                  int32_t on_host, void** managed) {
  return call(engine, [&](cleave_engine& e) {
    given(managed, "managed") =
        capi::managed_tensor(e.shared_from_this(), &given(static_cast<char*>(data), "data"), DType(dtype),
                             shape, dims, on_host ? Device{} : e.base().device(), e.lies_turned(data));
  });
}
