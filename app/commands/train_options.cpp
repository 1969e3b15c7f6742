#include "app/commands/train_options.h"

#include <algorithm>
#include <filesystem>

#include "app/add_options.h"
#include "app/commands/trainer_names.h"
#include "app/parse.h"
#include "core/error.h"

namespace cleave::app {

namespace {

// NAME=DATA, with a word as NAME. An existing file with such a name takes precedence.
EvalSet eval_set_of(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals == std::string::npos ? 0 : equals);
  const auto in_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  std::error_code none;
  if (name.empty() || !std::all_of(name.begin(), name.end(), in_word) || std::filesystem::exists(text, none))
    return {"", text};
  return {name, text.substr(equals + 1)};
}

std::vector<EvalSet> eval_sets_of(const std::vector<std::string>& given) {
  std::vector<EvalSet> sets;
  for (const std::string& text : given) {
    if (text.empty()) continue;
    EvalSet set = eval_set_of(text);
    require(!set.data.empty(), Exit::usage, "--eval_data {}: missing data after the name; give NAME=DATA",
            text);
    const bool taken =
        std::any_of(sets.begin(), sets.end(), [&](const EvalSet& s) { return s.name == set.name; });
    require(!taken, Exit::usage,
            "--eval_data: {}; give each a different name, as in --eval_data books=books.txt",
            set.name.empty() ? "two data sets have no name"
                             : fmt::format("two data sets have the name {}", set.name));
    sets.push_back(std::move(set));
  }
  return sets;
}

void add_data_options(CLI::App& app, RunOptions& o) {
  app.add_option(
         "--data", o.data,
         "text or .jsonl, tokenized once (cached in OUTPUT/tokens or the user's cache); a token file "
         "(Megatron .bin with .idx, llm.c or nanoGPT .bin); a folder, pattern or list of files, sampled in "
         "proportion to their size; or a blend: \"0.7 a.bin 0.3 b.bin\", or @FILE with one source per line")
      ->required();
  app.add_option("--jsonl_key", o.jsonl_key, "name of the text field in a .jsonl")->capture_default_str();
  add_token_bytes(app, o.model.token_bytes);
  app.add_flag("--pack", o.pack,
               "pack whole documents into samples and pad the rest (default: windows over all tokens)");
}

void add_length_options(CLI::App& app, RunOptions& o) {
  app.add_option("--steps", o.steps, "optimizer steps of the whole training, resumes included")
      ->capture_default_str()
      ->check(integer(0));
  app.add_option("--epochs", o.epochs, "epochs to train, instead of --steps; may be fractional")
      ->check(number(1e-6, 1e9));
}

void add_evaluation_options(CLI::App& app, RunOptions& o, std::vector<std::string>& eval_data) {
  app.add_option("--eval_data", eval_data,
                 "validation data in the forms of --data; every source is evaluated completely; NAME=DATA "
                 "names it; may be repeated: the first one decides the best checkpoint")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--eval_interval", o.eval_interval, "steps between evaluations (0: at the end only)")
      ->check(integer(0));
}

void add_begin_options(CLI::App& app, RunOptions& o) {
  app.add_option("--init", o.init,
                 "initial weights; auto: those of --model if it is a folder with weights, otherwise random; "
                 "random: always random")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "random"}));
  app.add_option("--seed", o.seed, "seed of initial weights, dropout and sample order")
      ->capture_default_str()
      ->check(seed());
}

void add_saving_options(CLI::App& app, RunOptions& o) {
  app.add_option("--output", o.output, "folder for checkpoints (default: no checkpoints)");
  app.add_option("--save_interval", o.save_interval, "save a checkpoint every N steps (0: at the end only)")
      ->check(integer(0));
  app.add_option("--save_minutes", o.save_minutes, "save a checkpoint every N minutes (0: off)")
      ->check(number(0));
  app.add_option("--keep", o.keep, "number of newest checkpoints to keep (0: all)")
      ->default_str(std::to_string(RunOptions::kKept))
      ->check(integer(0));
  app.add_option("--keep_every", o.keep_every,
                 "also keep every checkpoint with a step divisible by N (0: off)")
      ->check(integer(0));
  app.add_flag("--keep_best", o.keep_best,
               "also save and keep the checkpoint with the smallest validation loss: OUTPUT/best names it, "
               "--tag best selects it, --export writes it");
}

void add_ending_options(CLI::App& app, RunOptions& o) {
  app.add_option("--early_stopping_patience", o.patience,
                 "early stopping patience, in evaluations without improvement (0: off)")
      ->check(integer(0));
  app.add_option("--early_stopping_threshold", o.threshold, "minimum improvement of the loss")
      ->check(number(0));
}

void add_resume_options(CLI::App& app, RunOptions& o) {
  app.add_option("--resume", o.resume,
                 "auto (newest checkpoint, if any), required, never, or a checkpoint name")
      ->capture_default_str();
  app.add_option("--resume_check", o.resume_check,
                 "on: store the loss of the next step in checkpoints, and abort if the first loss after a "
                 "resume differs; off: neither")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  app.add_flag("--reset_optimizer", o.reset_optimizer,
               "load only the weights; the optimizer starts from scratch");
  app.add_flag("--reset_adapters", o.reset_adapters,
               "discard trained adapters of layers that cleave.lora.targets no longer names");
  app.add_option(
      "--export", o.export_to,
      "at the end, write a Hugging Face model folder; must not exist (cleave export does the same later)");
}

void add_telling_options(CLI::App& app, RunOptions& o) {
  app.add_option("--metrics", o.metrics, "JSON lines file, one object per step");
  app.add_option("--http", o.http,
                 "port, or ADDRESS:PORT, of a page about the run, with metrics for Prometheus; overrides "
                 "cleave.http");
  app.add_option(
         "--report_to", o.report_to,
         "mlflow: write to an MLflow run, as cleave.mlflow.enabled of the ds_config; none: only if the "
         "ds_config enables it")
      ->capture_default_str();
  app.add_option("--trace", o.trace,
                 "trace file for Perfetto or chrome://tracing; with several ranks <stem>.<rank>.json (input "
                 "of scripts/pipeline_idle.py)");
  app.add_option("--trace_steps", o.trace_steps, "number of steps to trace")
      ->capture_default_str()
      ->check(integer(1));
  app.add_flag("--ngrams", o.ngrams, "compare the validation loss with byte n-gram models");
  auto* verbose =
      app.add_flag("--verbose", o.verbose, "print every key and the complete memory table at the start");
  app.add_flag("--quiet", o.quiet,
               "print only the model and its weights at the start, and no summary at the end")
      ->excludes(verbose);
  app.add_option("--record", o.record.folder, "for cleave compare")->group("");
  app.add_option("--follow", o.record.follow, "for cleave compare")->group("");
  app.add_option("--perturb", o.record.perturb, "for cleave compare")->group("");
  app.add_flag("--strict", o.strict,
               "treat warnings about the ds_config and about changes since the checkpoint as errors");
}

// Requires options that others depend on, and rejects contradictions.
void require_whole(const RunOptions& o, bool steps_given) {
  require(!o.epochs || !steps_given, Exit::usage, "--epochs: conflicts with --steps; give one of them");
  require(o.report_to == "mlflow" || o.report_to == "none", Exit::usage,
          "--report_to {}: unsupported (expected mlflow or none); set tensorboard or csv_monitor in the "
          "ds_config, "
          "or write JSON lines with --metrics",
          o.report_to);
  require(o.resume == "auto" || o.resume == "never" || !o.output.empty(), Exit::usage,
          "--resume {}: needs --output, the folder to resume from", o.resume);
  for (const auto& [name, given] : {std::pair{"--save_interval", o.save_interval > 0},
                                    {"--save_minutes", o.save_minutes > 0},
                                    {"--keep_every", o.keep_every > 0},
                                    {"--keep_best", o.keep_best}})
    require(!given || !o.output.empty(), Exit::usage, "{}: needs --output, the folder of checkpoints", name);
  require(o.export_to.empty() || !o.output.empty(), Exit::usage,
          "--export: needs --output, the folder of the checkpoint to export");
  for (const auto& [name, given] :
       {std::pair{"--keep_best", o.keep_best}, {"--early_stopping_patience", o.patience > 0}})
    require(!given || (!o.eval_sets.empty() && o.eval_interval > 0), Exit::usage,
            "{}: needs --eval_data, and --eval_interval, the steps between evaluations", name);
  require(o.threshold == 0 || o.patience > 0, Exit::usage,
          "--early_stopping_threshold: needs --early_stopping_patience, the evaluations to wait");
  for (const auto& [name, given] :
       {std::pair{"--ngrams", o.ngrams}, {"--eval_interval", o.eval_interval > 0}})
    require(!given || !o.eval_sets.empty(), Exit::usage, "{}: needs --eval_data", name);
}

}  // namespace

bool parse_options(TrainOptions& options, const Arguments& arguments) {
  RunOptions& o = options.run;
  CLI::App app(
      "Trains a model from a ds_config.json. One process is one rank; rank and world size come from the "
      "environment.\nExample: cleave train --deepspeed_config ds_config.json --model tiny --data corpus.txt "
      "--seq_len 256 --steps 200\nHugging Face Trainer options are accepted under their names, or rejected "
      "with the equivalent Cleave option.",
      "train");
  std::vector<std::string> eval_data;
  add_config_option(app, o.config, "the ds_config file", true);
  add_options(app, o.model);
  add_data_options(app, o);
  add_length_options(app, o);
  add_evaluation_options(app, o, eval_data);
  add_begin_options(app, o);
  add_saving_options(app, o);
  add_ending_options(app, o);
  add_resume_options(app, o);
  add_telling_options(app, o);
  add_options(app, o.ranks);
  add_options(app, o.values);
  OwnArguments own = own_arguments(arguments);
  options.notes = std::move(own.notes);
  if (!parse(app, std::move(own.arguments))) return false;
  o.eval_sets = eval_sets_of(eval_data);
  require_whole(o, app.get_option("--steps")->count() > 0);
  return true;
}

}  // namespace cleave::app
