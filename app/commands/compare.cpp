#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "app/arguments.h"
#include "app/commands.h"
#include "app/parse.h"
#include "app/start/launch_program.h"
#include "core/error.h"

namespace cleave::app {
namespace {

// Reports missing packages of the Python, or runs cleave.compare.
constexpr const char* kCompare = R"py(
import importlib.util, runpy, sys
for name in ("torch", "cleave"):
    if importlib.util.find_spec(name) is None:
        print(f"error: compare: {sys.executable} has no module {name}; write a Python that has torch and Cleave's package after --, or "
              "install them there (pip install . in Cleave's tree)", file=sys.stderr)
        sys.exit(2)
runpy.run_module("cleave.compare", run_name="__main__", alter_sys=True)
)py";

struct CompareOptions {
  int64_t ranks = 1, steps = 3, seed = 42;
  std::string against = "torch", keep;
  bool json = false;
  Arguments command;  // after --
};

bool parse_options(CompareOptions& o, const Arguments& arguments) {
  const auto dashes = std::ranges::find(arguments, "--");
  CLI::App app(
      "Trains a PyTorch script for a few steps in the engine and in plain torch, and says whether both are "
      "the same.\nNames the first difference: step, rank, micro-batch, module and parameter. Exits with 5 if "
      "the runs differ.\n  cleave compare [OPTIONS] -- [PYTHON] SCRIPT ARGS\nExample: cleave compare -n 2 -- "
      "python train.py --deepspeed_config ds_config.json",
      "compare");
  app.add_option("-n,--nproc", o.ranks, "number of ranks on this machine")
      ->capture_default_str()
      ->check(integer(1, 4096));
  app.add_option("--steps", o.steps, "number of optimizer steps to compare")
      ->capture_default_str()
      ->check(integer(1, 1000000));
  app.add_option("--against", o.against, "reference: torch, deepspeed, or a ds_config file for the engine")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "seed of Python, NumPy and torch before the script starts")
      ->capture_default_str()
      ->check(integer(0, 4294967295));
  app.add_option("--keep", o.keep, "new folder for the records of both runs (default: a temporary folder)");
  app.add_flag("--json", o.json, "print one JSON object");
  Arguments files;
  app.add_option("files", files, "")->group("");
  if (!parse(app, Arguments(arguments.begin(), dashes))) return false;
  require(
      files.empty(), Exit::usage,
      "compare: unexpected argument {}; write the script after --, as in: cleave compare -- python train.py",
      files.empty() ? "" : files[0]);
  if (dashes != arguments.end()) o.command.assign(dashes + 1, arguments.end());
  require(!o.command.empty(), Exit::usage,
          "compare: no script; write it after --, as in: cleave compare -n 2 -- python train.py");
  return true;
}

bool is_python(const std::string& word) { return word.substr(word.rfind('/') + 1).starts_with("python"); }

}  // namespace

// This process becomes the package's comparison.
int run_compare(const Arguments& arguments) {
  CompareOptions o;
  if (!parse_options(o, arguments)) return 0;
  Arguments words{"", "-c", kCompare};
  words.insert(words.end(), {"--program", this_program(), "-n", std::to_string(o.ranks)});
  words.insert(words.end(), {"--steps", std::to_string(o.steps), "--seed", std::to_string(o.seed)});
  words.insert(words.end(), {"--against", o.against});
  if (!o.keep.empty()) words.insert(words.end(), {"--keep", o.keep});
  if (o.json) words.emplace_back("--json");
  words.emplace_back("--");
  words.insert(words.end(), o.command.begin(), o.command.end());
  const bool given = is_python(o.command[0]);
  for (const std::string& python : given ? Arguments{o.command[0]} : Arguments{"python", "python3"}) {
    words[0] = python;
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execvp(python.c_str(), pointers.data());
  }
  fail(Exit::usage, "{}: cannot be started; write an existing Python after --",
       given ? o.command[0] : "python");
}

}  // namespace cleave::app
