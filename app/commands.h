// Subcommands of the cleave binary. Each takes its arguments (without the names of the program and
// the command), writes results to stdout and messages to stderr, and returns the exit code.
// Failures throw Error.
#pragma once
#include "app/arguments.h"

namespace cleave::app {

int run_train(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_generate(const Arguments& arguments);
int run_launch(const Arguments& arguments);
int run_deepspeed(const Arguments& arguments);  // also the program's second name; not a command word
int run_check(const Arguments& arguments);
int run_explain(const Arguments& arguments);
int run_plan(const Arguments& arguments);
int run_compare(const Arguments& arguments);
int run_data(const Arguments& arguments);
int run_inspect(const Arguments& arguments);
int run_verify(const Arguments& arguments);
int run_digest(const Arguments& arguments);
int run_import(const Arguments& arguments);
int run_export(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_replay(const Arguments& arguments);
int run_report(const Arguments& arguments);
int run_runs(const Arguments& arguments);
int run_top(const Arguments& arguments);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};

inline constexpr Command kCommands[] = {
    {"train", "train a model from a ds_config.json; one process is one rank", run_train},
    {"launch", "start the ranks of a job, here or on several hosts: cleave launch -n 2 -- train ...",
     run_launch},
    {"check", "list all errors of ds_config files, with positions", run_check},
    {"explain", "print value, origin and effect of each key of a ds_config", run_explain},
    {"plan", "compute memory, traffic and idle share of every rank without starting ranks", run_plan},
    {"compare",
     "train a script in the engine and in torch, or with two ds_configs; name the first difference",
     run_compare},
    {"eval", "compute the loss of a checkpoint on data", run_eval},
    {"generate", "sample text from a checkpoint", run_generate},
    {"top", "show a run in the terminal until it ends", run_top},
    {"runs", "compare runs: results, curves, and settings that differ", run_runs},
    {"inspect", "list the contents of a checkpoint", run_inspect},
    {"replay", "compute a recorded step of one rank again, and compare its bits", run_replay},
    {"verify", "compare every byte of a checkpoint with its checksum", run_verify},
    {"digest", "print layout-independent hashes of a checkpoint", run_digest},
    {"import", "convert a Hugging Face model or a DeepSpeed checkpoint to a checkpoint", run_import},
    {"export", "convert a checkpoint to a Hugging Face model folder", run_export},
    {"bench", "measure arithmetic, memory, messages and steps of this machine against its limits", run_bench},
    {"report", "print CPU, GPUs, libraries and missing parts of this machine and build", run_report},
    {"data", "tokenize, split and inspect data", run_data},
};

}  // namespace cleave::app
