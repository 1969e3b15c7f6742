#include "app/add_options.h"

#include "app/parse.h"
#include "core/cores.h"
#include "core/error.h"
#include "model/presets.h"

namespace cleave::app {

void add_config_option(CLI::App& app, std::string& config, const std::string& help, bool required) {
  app.add_option("--deepspeed_config", config, help);
  app.add_option_function<std::string>(
         "--deepspeed",
         [&config](const std::string& file) {
           require(file.empty() || config.empty() || file == config, Exit::usage,
                   "--deepspeed: conflicts with --deepspeed_config (got {} and {}, expected one file); give "
                   "one of them",
                   file, config);
           if (!file.empty()) config = file;
         },
         "same as --deepspeed_config if it has a value; accepted without one")
      ->expected(0, 1);
  if (required)
    app.final_callback([&config] {
      require(!config.empty(), Exit::usage, "--deepspeed_config: missing; give the ds_config file");
    });
}

void add_options(CLI::App& app, ModelOptions& o) {
  app.add_option("--model", o.model,
                 "Hugging Face config.json, a model folder (train starts from its weights), or a preset "
                 "(preset:NAME if a folder has the same name): " +
                     model::preset_names())
      ->capture_default_str();
  app.add_option("--seq_len", o.seq_len, "tokens per sample")
      ->capture_default_str()
      ->check(integer(1, 1 << 30));
  app.add_option(
      "--tokenizer", o.tokenizer,
      "tokenizer for texts: byte, a tokenizer.json or tokenizer.model, or a folder with one; token files "
      "(.bin) contain ids already (default: tokenizer of the model folder, otherwise byte)");
  add_document_mask(app, o.document_mask);
}

void add_token_bytes(CLI::App& app, int& token_bytes) {
  app.add_option("--token_bytes", token_bytes,
                 "bytes per token of a .bin without header: 2 (uint16) or 4 (uint32); by default the width "
                 "that fits the vocabulary")
      ->check(CLI::IsMember({2, 4}));
}

void add_document_mask(CLI::App& app, bool& document_mask) {
  app.add_flag("--document_mask", document_mask,
               "restrict attention and positions to one document, and mask predictions across documents; "
               "needs data with document boundaries (.bin with .idx)");
}

void add_options(CLI::App& app, RankOptions& o) {
  o.secret_by_pmi = true;  // commands of this program do not use MPI
  app.add_option("--transport", o.transport, "auto, shm or gloo")->capture_default_str();
  app.add_option("--gpu_transport", o.gpu_transport,
                 "transport between GPUs: auto, nccl, ipc (one host) or host (through host memory); ipc and "
                 "host sum in rank order")
      ->capture_default_str();
  app.add_flag("--share_gpu", o.share_gpu, "let several ranks share a GPU; for tests");
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:INDEX")->capture_default_str();
  app.add_option("--device_memory", o.device_memory, "device memory limit per rank, such as 8GiB");
  app.add_option("--host_memory", o.host_memory, "host memory limit per rank");
  app.add_option(
         "--threads", o.threads,
         "CPU threads per rank (default: OMP_NUM_THREADS, or this rank's share of the available cores)")
      ->check(integer(1, kMostThreads));
  app.add_option("--local_rank", o.local_rank, "set by launchers; must agree with the environment")
      ->check(integer(-1, 1'000'000));
}

// Names the replacement of unsupported Trainer schedules.
CLI::Validator trainers_schedule() {
  const std::vector<std::string> built = {"linear", "cosine", "constant", "constant_with_warmup"};
  constexpr std::pair<const char*, const char*> others[] = {
      {"polynomial", "its default power of 1 falls linearly to 1e-7; use linear, which falls to 0"},
      {"cosine_with_restarts", "its default single cycle equals cosine; use cosine"},
      {"cosine_with_min_lr", "set scheduler WarmupCosineLR with cos_min_ratio in the ds_config"},
      {"cosine_warmup_with_min_lr", "set scheduler WarmupCosineLR with cos_min_ratio in the ds_config"},
      {"inverse_sqrt", "Cleave has no equivalent schedule"},
      {"reduce_lr_on_plateau", "schedules cannot depend on the validation loss"},
      {"warmup_stable_decay", "Cleave has no schedule with three phases"}};
  return CLI::Validator(
      [=](std::string& text) {
        for (const auto& [name, advice] : others)
          if (text == name)
            return fmt::format("{} is not supported; {} (expected {})", name, advice, listed(built));
        return one_of(built)(text);
      },
      "");
}

void add_options(CLI::App& app, config::AutoValues& a, InHelp in_help) {
  a.default_micro_batch_size = 8, a.warmup_steps = 0, a.schedule = "linear";
  a.lr = 5e-5, a.beta1 = 0.9, a.beta2 = 0.999, a.eps = 1e-8, a.weight_decay = 0, a.max_grad_norm = 1;
  const auto option = [&](const char* name, auto& value, const char* key, const char* otherwise) {
    return app.add_option(name, value, fmt::format("{} (default {})", key, otherwise))
        ->each([&a, name](const std::string&) { a.given.insert(name); })
        ->group(in_help == InHelp::yes
                    ? "Trainer options: values for \"auto\" and for missing keys of the ds_config"
                    : "");
  };
  option("--per_device_train_batch_size", a.micro_batch_size, "train_micro_batch_size_per_gpu",
         "8, or derived from the other batch keys")
      ->check(integer(1));
  option("--gradient_accumulation_steps", a.gradient_accumulation_steps, "gradient_accumulation_steps",
         "1, or derived from the other batch keys")
      ->check(integer(1));
  option("--learning_rate", a.lr, "optimizer.params.lr", "5e-5")->check(number(0));
  option("--weight_decay", a.weight_decay, "optimizer.params.weight_decay", "0")->check(number(0));
  option("--adam_beta1", a.beta1, "optimizer.params.betas", "0.9")->check(number(0, 1));
  option("--adam_beta2", a.beta2, "optimizer.params.betas", "0.999")->check(number(0, 1));
  option("--adam_epsilon", a.eps, "optimizer.params.eps", "1e-8")->check(number(0));
  option("--max_grad_norm", a.max_grad_norm, "gradient_clipping", "1")->check(number(0));
  option("--lr_scheduler_type", a.schedule,
         "schedule if the file has none: linear, cosine, constant or constant_with_warmup", "linear")
      ->check(trainers_schedule());
  option("--warmup_steps", a.warmup_steps, "scheduler.params.warmup_num_steps; below 1: share of all steps",
         "0")
      ->check(number(0, 1e15));
  option("--warmup_ratio", a.warmup_ratio, "warm-up as a share of all steps, if --warmup_steps is 0", "0")
      ->check(number(0, 1));
  option("--fp16", a.fp16, "fp16.enabled", "false; without a value true")
      ->expected(0, 1)
      ->default_str("true");
  option("--bf16", a.bf16, "bf16.enabled", "false; without a value true")
      ->expected(0, 1)
      ->default_str("true");
}

void add_steps_option(CLI::App& app, config::AutoValues& values) {
  app.add_option("--steps", values.total_steps,
                 "optimizer steps of the training, for schedules that depend on them")
      ->check(integer(1));
}

}  // namespace cleave::app
