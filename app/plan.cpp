#include "app/options.h"
#include "app/parse.h"
#include "config_schema/read_config.h"
#include "core/error.h"
#include "plan/job_plan.h"

namespace cleave {

int run_plan(const Arguments& arguments) {
  CLI::App app(
      "What every rank of a job takes: memory by category and kind, bytes sent in one step by group and\n"
      "collective, and the pipeline's idle share. Nothing is started and no device is needed. Exits with 3\n"
      "when a rank does not fit in --device_memory or --host_memory.\n"
      "Example: cleave plan --deepspeed_config ds_config.json --model gpt2-xl --seq_len 1024 --world_size 8",
      "plan");
  std::string config;
  ModelOptions model;
  RankOptions limits;
  AutoValues values;
  int64_t world = 1, vocab = 256;
  bool strict = false, json = false, simulate = false;
  app.add_option("--deepspeed_config", config, "the ds_config file")->required();
  add_options(app, model);
  add_options(app, values);
  app.add_option("--world_size", world, "all ranks of the job")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--vocab", vocab, "of the data, for a model that leaves it open")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--device_memory", limits.device_memory, "limit of a rank's device memory, such as 8GiB");
  app.add_option("--host_memory", limits.host_memory, "limit of a rank's host memory");
  app.add_flag("--strict", strict, "warnings about the ds_config are errors");
  app.add_flag("--json", json, "one JSON object, in bytes");
  app.add_flag("--simulate", simulate,
               "also run the calls of every rank in lockstep: none may wait for ever or be given other data");
  if (!parse(app, arguments)) return 0;

  const ModelConfig shape = config_of(model, vocab);
  values.hidden_size = width_of(shape);
  const ReadResult read = read_ds_config_file(
      config, {.strict = strict, .world_size = world, .world_origin = "--world_size", .auto_values = values});
  std::fputs(format(read.problems).c_str(), stderr);
  require(read.ok(), Exit::usage, "{} was refused; there is no plan", config);
  const EngineMaker make = [&](Communicator& ranks, const EngineOptions& options) {
    const ModelFactory cut = [&](const Axes& axes) {
      return make_model(shape, model_dtype(read.config), model.seq_len, model.model, axes);
    };
    return std::make_unique<Engine>(read.config, cut, ranks, options);
  };
  const JobPlan plan = plan_job(read.config, int(world), make);
  std::printf("%s\n", (json ? to_json(plan) : format(plan)).c_str());
  if (simulate) {
    const CallProof proof = prove_calls(int(world), make);
    std::fprintf(stderr, "simulated %d ranks: their %lld calls fit together\n", proof.ranks,
                 static_cast<long long>(proof.calls));
  }
  plan.check_fits(memory_limits(limits));
  return 0;
}

}  // namespace cleave
