// The subcommands of the cleave binary. Each takes its arguments (without the program's and its own name),
// writes what was asked for to stdout and messages to stderr, and returns the exit code; what goes wrong is
// thrown as Error.
#pragma once
#include "app/arguments.h"

namespace cleave::app {

int run_train(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_generate(const Arguments& arguments);
int run_launch(const Arguments& arguments);
int run_deepspeed(const Arguments& arguments);  // as which this program is called, too; no word of its own
int run_check(const Arguments& arguments);
int run_explain(const Arguments& arguments);
int run_plan(const Arguments& arguments);
int run_data(const Arguments& arguments);
int run_inspect(const Arguments& arguments);
int run_verify(const Arguments& arguments);
int run_digest(const Arguments& arguments);
int run_import(const Arguments& arguments);
int run_export(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_report(const Arguments& arguments);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments&);
};

inline constexpr Command kCommands[] = {
    {"train", "train a model from a ds_config.json; one process is one rank", run_train},
    {"launch", "start the ranks of a job, here or on several hosts: cleave launch -n 2 -- train ...",
     run_launch},
    {"check", "validate ds_config files: every error at once, with its position", run_check},
    {"explain", "what each key of a ds_config is here, where its value comes from, what it does",
     run_explain},
    {"plan", "memory, messages and idle share of every rank, without starting any", run_plan},
    {"eval", "loss of a checkpoint on data", run_eval},
    {"generate", "text from a checkpoint", run_generate},
    {"inspect", "what a checkpoint holds", run_inspect},
    {"verify", "compare every byte of a checkpoint with its checksum", run_verify},
    {"digest", "hashes of a checkpoint that are the same for every layout", run_digest},
    {"import", "a checkpoint from a published model of Hugging Face", run_import},
    {"export", "a folder that transformers reads from a checkpoint", run_export},
    {"bench", "what this machine reaches in arithmetic, memory, messages and steps, beside its limits",
     run_bench},
    {"report", "what this machine and this build offer", run_report},
    {"data", "turn text into a token file, split it, or look into one", run_data},
};

}  // namespace cleave::app
