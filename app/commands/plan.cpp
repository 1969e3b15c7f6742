#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "app/add_options.h"
#include "app/commands.h"
#include "app/output_paths.h"
#include "app/parse.h"
#include "app/planner.h"
#include "core/error.h"
#include "core/units.h"
#include "plan/bench/bench_report.h"
#include "plan/machine_memory.h"
#include "plan/measured_cpu.h"

namespace cleave::app {
namespace {

struct PlanOptions {
  std::string script, trace, config, device, html;
  ModelOptions model;
  RankOptions limits;
  config::AutoValues values;
  int64_t world = 1, vocab = 256, here = 0, per_node = 0;
  bool strict = false, json = false, simulate = false, suggest = false;
};

void add_output_options(CLI::App& app, PlanOptions& o) {
  app.add_flag("--suggest", o.suggest, "print the ds_config of the fastest layout that fits; needs --device");
  app.add_flag("--strict", o.strict, "treat warnings about the ds_config as errors");
  app.add_flag("--json", o.json, "print one JSON object; sizes in bytes");
  app.add_option("--html", o.html, "write the plan as one HTML page with pictures");
  app.add_flag(
      "--simulate", o.simulate,
      "simulate the calls of all ranks in lockstep, and fail if one waits forever or receives other data");
}

// The other options are for built-in models and their values.
void require_options_of_scripts(const CLI::App& app, const PlanOptions& o) {
  static constexpr std::string_view kOfScripts[] = {"--deepspeed_config",
                                                    "--deepspeed",
                                                    "--world_size",
                                                    "--ranks_per_node",
                                                    "--device_memory",
                                                    "--host_memory",
                                                    "--trace",
                                                    "--json",
                                                    "script"};
  for (const CLI::Option* option : app.get_options())
    require(option->count() == 0 || std::ranges::count(kOfScripts, option->get_name()), Exit::usage,
            "{}: applies to built-in models only; leave it out with {}", option->get_name(), o.script);
}

bool parse_options(PlanOptions& o, const Arguments& arguments) {
  CLI::App app(
      "Computes memory by category and kind, bytes sent per step by group and collective, and the pipeline's "
      "idle\nshare for every rank of a job. Starts no ranks and needs no device. Exits with 3 and suggests "
      "changes if a\nrank does not fit in --device_memory or --host_memory.\nExample: cleave plan "
      "--deepspeed_config ds_config.json --model gpt2-xl --seq_len 1024 --world_size 8",
      "plan");
  std::vector<std::string> devices;
  for (const plan::DeviceModel& m : plan::device_models()) devices.emplace_back(m.name);
  add_config_option(app, o.config, "the ds_config file", true);
  add_options(app, o.model);
  add_options(app, o.values);
  add_steps_option(app, o.values);
  app.add_option("--world_size,-n", o.world, "number of ranks of the job")
      ->capture_default_str()
      ->check(integer(1, 1 << 20));
  app.add_option("--vocab", o.vocab, "vocabulary size of the data, for models without their own")
      ->capture_default_str()
      ->check(integer(1));
  app.add_option(
      "--device", o.device,
      fmt::format("GPU to plan for, with its memory as limit and a predicted step time: {}, or a .json file "
                  "with measured rates; a file of cleave bench --json predicts ranks on the measured CPU",
                  fmt::join(devices, ", ")));
  app.add_option("--ranks_per_node", o.per_node,
                 "ranks per node, to separate traffic inside a node from traffic between nodes (default: 8, "
                 "or the number of --device)")
      ->check(integer(1));
  app.add_option("--device_memory", o.limits.device_memory, "device memory limit per rank, such as 8GiB");
  app.add_option("--host_memory", o.limits.host_memory, "host memory limit per rank");
  app.add_option("script", o.script,
                 "FILE.py:NAME, a function that returns a PyTorch module, instead of --model");
  app.add_option("--trace", o.trace,
                 "with FILE.py:NAME, a function in the file that computes the loss of a micro-batch from the "
                 "module, to count the tensors that PyTorch saves for the backward pass");
  app.add_option("--ranks_here", o.here, "check whether the first N ranks fit on this machine's CPU together")
      ->check(integer(0));
  add_output_options(app, o);
  if (!parse(app, arguments)) return false;
  require(!o.suggest || !o.device.empty(), Exit::usage,
          "--suggest: needs --device (expected one of {}), because the fastest layout depends on it",
          fmt::join(devices, ", "));
  require(o.trace.empty() || !o.script.empty(), Exit::usage,
          "--trace {}: names a function of FILE.py, but FILE.py:NAME is missing; give FILE.py:NAME, or leave "
          "--trace out",
          o.trace);
  if (!o.script.empty()) require_options_of_scripts(app, o);
  require(o.here <= o.world, Exit::usage,
          "--ranks_here: exceeds the ranks of the job (got {}, expected at most {})", o.here, o.world);
  return true;
}

void require_page_is_no_input(const PlanOptions& o) {
  OutputPaths paths;
  paths.input("--deepspeed_config", o.config), paths.input("--model", config_file_of_model(o.model.model));
  paths.input("--device", o.device), paths.file("--html", o.html);
  paths.require_distinct();
}

// Prints the progress of a search over many ranks every few seconds.
plan::TryConfig announced(plan::TryConfig plan) {
  using Clock = std::chrono::steady_clock;
  return [plan = std::move(plan), tried = 0, said = Clock::now()](const std::string& text,
                                                                  bool every_rank) mutable {
    ++tried;
    if (const auto now = Clock::now(); now - said > std::chrono::seconds(3)) {
      std::fprintf(stderr, "%d layouts planned\n", tried);
      said = now;
    }
    return plan(text, every_rank);
  };
}

int print_suggestion(const plan::Candidate& candidate, const MemoryLimits& limits,
                     const plan::DeviceModel& device, const Planner& planner) {
  const std::optional<plan::Suggestion> found =
      plan::suggest(candidate, limits, device, announced(planner.candidates()));
  require(found.has_value(), Exit::memory,
          "--suggest: no layout of this model on {} ranks fits in {} of device memory; use more ranks, a "
          "shorter --seq_len, or devices with more memory",
          candidate.plan.mesh.size(), format_bytes(limits.device_bytes));
  std::fprintf(stderr, "%d layouts were planned; this is the best of %d that fit:\n%s%s", found->tried,
               found->fitting, plan::format_gain(candidate, *found, limits, device).c_str(),
               plan::format(plan::predict(found->best.config, found->best.plan, device)).c_str());
  std::printf("%s\n", found->best.text.c_str());
  return 0;
}

void print(const plan::Candidate& candidate, const std::optional<plan::StepTime>& time,
           const PlanOptions& o) {
  if (o.json)
    std::printf("%s\n",
                (time ? plan::to_json(candidate.plan, *time) : plan::to_json(candidate.plan)).c_str());
  else
    std::printf("%s\n%s%s", plan::format(candidate.plan).c_str(),
                plan::gpu_reserve(candidate.plan).line(plan::most_device_bytes(candidate.plan)).c_str(),
                time ? plan::format(*time).c_str() : "");
  if (!o.html.empty()) {
    std::ofstream page(o.html);
    page << plan::to_html(candidate.plan);
    page.close();
    require(bool(page), Exit::usage, "{}: cannot be written; give a file in an existing folder", o.html);
    std::fprintf(stderr, "wrote %s\n", o.html.c_str());
  }
}

config::ReadResult read_config(const PlanOptions& o, const config::ReadOptions& options) {
  config::ReadResult read = config::read_ds_config_file(o.config, options);
  std::fputs(config::format(read.problems).c_str(), stderr);
  require(read.ok(), Exit::usage, "{}: the ds_config has {}; correct the file to plan it", o.config,
          config::name_errors(read.problems));
  for (const config::Note& n : read.notes)
    if (n.status == config::kNotKnown)
      std::fprintf(stderr, "note: %s: %s\n", n.path.c_str(), n.meaning.c_str());
  return read;
}

// Reports missing packages of the Python, or runs cleave.planning.
constexpr const char* kPlanning = R"py(
import runpy, sys
try:
    import torch, cleave
except ModuleNotFoundError as missing:
    print(f"error: {sys.argv[1]} is planned by {sys.executable}, which has no module {missing.name}; put a Python that has "
          "torch and Cleave's package first in PATH, or install them there (pip install . in Cleave's tree)", file=sys.stderr)
    sys.exit(2)
runpy.run_module("cleave.planning", run_name="__main__", alter_sys=True)
)py";

// Plans a PyTorch module: this process becomes the package's planner.
[[noreturn]] void plan_script(const PlanOptions& o) {
  const size_t colon = o.script.rfind(".py:");
  require(colon != std::string::npos && colon + 4 < o.script.size(), Exit::usage,
          "{}: expected FILE.py:NAME, with NAME a function that returns a PyTorch module", o.script);
  const std::string file = o.script.substr(0, colon + 3), name = o.script.substr(colon + 4);
  require(std::filesystem::is_regular_file(file), Exit::usage, "{}: does not exist", file);
  const MemoryLimits limits = memory_limits(o.limits);
  const auto bytes = [](int64_t limit) { return std::to_string(limit == MemoryLimits::kNone ? 0 : limit); };
  const std::string python[] = {"-c",
                                kPlanning,
                                file,
                                o.config,
                                o.json ? "json" : "",
                                name,
                                o.trace,
                                std::to_string(o.world),
                                std::to_string(o.per_node ? o.per_node : 8),
                                bytes(limits.device_bytes),
                                bytes(limits.host_bytes)};
  for (const char* program : {"python", "python3"}) {
    std::vector<char*> words{const_cast<char*>(program)};
    for (const std::string& word : python) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execvp(program, words.data());
  }
  fail(Exit::usage, "python: not found in PATH, but {} needs it; install it, or add it to PATH", file);
}

}  // namespace

int run_plan(const Arguments& arguments) {
  PlanOptions o;
  if (!parse_options(o, arguments)) return 0;
  if (!o.script.empty()) plan_script(o);
  require_page_is_no_input(o);
  const bool measured = o.device.ends_with(".json") && bench::holds_report(o.device);
  require(!measured || !o.suggest, Exit::usage,
          "--suggest: needs a GPU or its rates (got {}, a cleave bench report); leave --suggest out",
          o.device);
  const auto device =
      o.device.empty() || measured ? std::nullopt : std::optional(plan::device_model(o.device));
  MemoryLimits limits = memory_limits(o.limits);
  if (device && limits.device_bytes == MemoryLimits::kNone)
    limits.device_bytes = int64_t(device->memory_bytes);

  const model::ModelConfig shape = config_of(o.model, o.vocab);
  o.values.hidden_size = shape.width;
  const config::ReadOptions options{.strict = o.strict,
                                    .world_size = o.world,
                                    .world_origin = "--world_size",
                                    .auto_values = o.values,
                                    .steps_may_be_open = true};
  const config::ReadResult read = read_config(o, options);
  const int64_t per_node = o.per_node ? o.per_node : device ? device->per_node : 8;
  const Planner planner(shape, o.model, int(o.world), options,
                        {int(std::min(per_node, o.world)), device ? Device::cuda(0) : Device(), limits});
  const plan::Candidate candidate = planner.plan(read.text, read.config);
  if (o.suggest) return print_suggestion(candidate, limits, *device, planner);

  std::optional<plan::StepTime> time;
  if (device) time = plan::predict(candidate.config, candidate.plan, *device);
  if (measured) time = plan::MeasuredCpu(o.device).predict(candidate.config, candidate.plan);
  print(candidate, time, o);
  if (o.simulate) {
    const plan::CallProof proof = plan::prove_calls(int(o.world), planner.maker(candidate.config));
    std::fprintf(stderr, "simulated %d ranks: their %lld calls match\n", proof.ranks,
                 static_cast<long long>(proof.calls));
  }
  planner.require_fit(candidate, limits, o.json);  // otherwise the plan above has the table
  if (o.here > 0) plan::require_machine_fit(candidate.plan, 0, int(o.here), true);
  return 0;
}

}  // namespace cleave::app
