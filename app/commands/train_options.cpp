#include "app/commands/train_options.h"

#include <algorithm>
#include <filesystem>

#include "app/add_options.h"
#include "app/commands/trainer_names.h"
#include "app/parse.h"
#include "core/error.h"

namespace cleave::app {

namespace {

// NAME=DATA, where NAME is a word; a file may have such a name, too, and is meant where it is there.
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
    require(!set.data.empty(), Exit::usage, "--eval_data {}: no data stand behind the name", text);
    const bool taken =
        std::any_of(sets.begin(), sets.end(), [&](const EvalSet& s) { return s.name == set.name; });
    require(!taken, Exit::usage,
            "--eval_data: {}; give each a name of its own, as in --eval_data books=books.txt",
            set.name.empty() ? "two have no name" : fmt::format("two are called {}", set.name));
    sets.push_back(std::move(set));
  }
  return sets;
}

void add_data_options(CLI::App& app, RunOptions& o) {
  app.add_option(
         "--data", o.data,
         "a text or .jsonl, which --tokenizer turns into a token file once (in OUTPUT/tokens or the user's "
         "cache); or a token file: Megatron's .bin with .idx, llm.c or nanoGPT .bin; or several: a folder, a "
         "pattern or a list, each file as often as it is large; or a blend: \"0.7 a.bin 0.3 b.bin\", or "
         "@FILE "
         "with a line for each source")
      ->required();
  app.add_option("--jsonl_key", o.jsonl_key, "of the document in each line of a .jsonl")
      ->capture_default_str();
  add_token_bytes(app, o.model.token_bytes);
  app.add_flag(
      "--pack", o.pack,
      "documents stay whole where they fit into a sample, and the rest of it is padding (without it: "
      "windows over all tokens)");
}

void add_length_options(CLI::App& app, RunOptions& o) {
  app.add_option("--steps", o.steps, "optimizer steps of the whole training, over resumes too")
      ->capture_default_str()
      ->check(integer(0));
  app.add_option("--epochs", o.epochs,
                 "how often all samples are trained on, in place of --steps; a fraction ends inside an epoch")
      ->check(number(1e-6, 1e9));
}

void add_evaluation_options(CLI::App& app, RunOptions& o, std::vector<std::string>& eval_data) {
  app.add_option(
         "--eval_data", eval_data,
         "validation text or token file, or a blend as --data takes it, of which every source is "
         "evaluated whole, in order, whatever its weight; NAME=DATA names it, and may be given several "
         "times: the first is the one that decides what is the best")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--eval_interval", o.eval_interval, "steps between evaluations (0: at the end only)")
      ->check(integer(0));
}

void add_begin_options(CLI::App& app, RunOptions& o) {
  app.add_option("--init", o.init,
                 "auto: with the weights of --model where that is a folder, else with random ones; random: "
                 "with random ones whatever the folder has")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "random"}));
  app.add_option("--seed", o.seed, "of weights, dropout and sample order")
      ->capture_default_str()
      ->check(integer(0));
}

void add_saving_options(CLI::App& app, RunOptions& o) {
  app.add_option("--output", o.output, "folder for checkpoints (none: nothing is saved)");
  app.add_option("--save_interval", o.save_interval, "steps between checkpoints (0: at the end only)")
      ->check(integer(0));
  app.add_option("--save_minutes", o.save_minutes,
                 "minutes between checkpoints, whatever the steps take (0: none)")
      ->check(number(0));
  app.add_option("--keep", o.keep,
                 "how many of the newest checkpoints to keep, whatever their steps (0: all)")
      ->default_str(std::to_string(RunOptions::kKept))
      ->check(integer(0));
  app.add_option("--keep_every", o.keep_every,
                 "of older ones, keep those of steps that are multiples of this (0: none)")
      ->check(integer(0));
  app.add_flag("--keep_best", o.keep_best,
               "also save where an evaluation has the smallest loss yet, and keep the last such checkpoint: "
               "OUTPUT/best names it, --tag best takes it, and --export writes it");
}

void add_ending_options(CLI::App& app, RunOptions& o) {
  app.add_option("--early_stopping_patience", o.patience,
                 "end after so many evaluations in a row that bring no smaller loss (0: never)")
      ->check(integer(0));
  app.add_option("--early_stopping_threshold", o.threshold, "by how much a loss has to be smaller for that")
      ->check(number(0));
}

void add_resume_options(CLI::App& app, RunOptions& o) {
  app.add_option("--resume", o.resume, "auto, required, never, or a checkpoint's name")
      ->capture_default_str();
  app.add_option("--resume_check", o.resume_check,
                 "on: a checkpoint keeps the loss of the step that comes next, and a run that goes on with "
                 "another one ends; off: neither")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  app.add_flag("--reset_optimizer", o.reset_optimizer, "resume the weights alone: the optimizer begins anew");
  app.add_flag(
      "--reset_adapters", o.reset_adapters,
      "when resuming with fewer cleave.lora.targets, or without cleave.lora, drop the trained adapters of "
      "the other layers");
  app.add_option(
      "--export", o.export_to,
      "at the end, also write the weights to this folder for transformers, in the model's type; it is "
      "never overwritten (cleave export does the same later)");
}

void add_telling_options(CLI::App& app, RunOptions& o) {
  app.add_option("--metrics", o.metrics, "JSON lines file, one object a step");
  app.add_option("--trace", o.trace,
                 "what every rank does and when, for Perfetto or chrome://tracing: FILE, with several ranks "
                 "<stem>.<rank>.json (scripts/pipeline_idle.py reads them)");
  app.add_option("--trace_steps", o.trace_steps, "so many steps of this run are traced")
      ->capture_default_str()
      ->check(integer(1));
  app.add_flag("--ngrams", o.ngrams, "compare the validation loss with n-gram models of the same bytes");
  auto* verbose = app.add_flag("--verbose", o.verbose, "start with every key and the whole memory table");
  app.add_flag("--quiet", o.quiet, "start with two lines: where the weights come from, and the model")
      ->excludes(verbose);
  app.add_flag("--strict", o.strict,
               "warnings about the ds_config, and about what changed since a checkpoint, are errors");
}

// Options that lack another one, or contradict it.
void require_whole(const RunOptions& o, bool steps_given) {
  require(!o.epochs || !steps_given, Exit::usage,
          "--epochs and --steps both say how long the training is; give one of them");
  require(o.resume == "auto" || o.resume == "never" || !o.output.empty(), Exit::usage,
          "--resume {} needs --output, the folder to resume from", o.resume);
  for (const auto& [name, given] : {std::pair{"--save_interval", o.save_interval > 0},
                                    {"--save_minutes", o.save_minutes > 0},
                                    {"--keep_every", o.keep_every > 0},
                                    {"--keep_best", o.keep_best}})
    require(!given || !o.output.empty(), Exit::usage, "{} needs --output, the folder of checkpoints", name);
  require(o.export_to.empty() || !o.output.empty(), Exit::usage,
          "--export needs --output, the folder of the checkpoint that it is made from");
  for (const auto& [name, given] :
       {std::pair{"--keep_best", o.keep_best}, {"--early_stopping_patience", o.patience > 0}})
    require(!given || (!o.eval_sets.empty() && o.eval_interval > 0), Exit::usage,
            "{} needs --eval_data, and --eval_interval, the steps between evaluations", name);
  require(o.threshold == 0 || o.patience > 0, Exit::usage,
          "--early_stopping_threshold needs --early_stopping_patience, the evaluations to wait");
  for (const auto& [name, given] :
       {std::pair{"--ngrams", o.ngrams}, {"--eval_interval", o.eval_interval > 0}})
    require(!given || !o.eval_sets.empty(), Exit::usage, "{} needs --eval_data", name);
}

}  // namespace

bool parse_options(TrainOptions& options, const Arguments& arguments) {
  RunOptions& o = options.run;
  CLI::App app(
      "Trains a model from a ds_config.json. One process is one rank; rank and world come from the "
      "environment.\n"
      "Example: cleave train --deepspeed_config ds_config.json --model tiny --data corpus.txt --seq_len 256 "
      "--steps 200\n"
      "Options of Hugging Face's Trainer are taken under its names, or refused with what to write here.",
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
