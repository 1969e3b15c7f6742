#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/arguments.h"
#include "app/commands.h"
#include "app/compare/compare_options.h"
#include "app/parse.h"
#include "core/error.h"

namespace cleave::app {
namespace {

// "4", or with `most` 2 also "1,4".
std::vector<int> ranks_of(const std::string& text, size_t most) {
  std::vector<int> ranks;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int n = 0;
    const auto [at, error] = std::from_chars(text.data() + begin, text.data() + end, n);
    require(error == std::errc() && at == text.data() + end && n >= 1 && n <= 4096 && ranks.size() < most,
            Exit::usage, "--nproc: expected {} from 1 to 4096 (got {})",
            most == 1 ? "a number" : "one number, or two with a comma,", text);
    ranks.push_back(n);
    begin = end + 1;
  }
  return ranks;
}

bool parse_options(CompareOptions& o, const Arguments& arguments) {
  CLI::App app(
      "Trains twice for a few steps and says whether both runs are the same; exits with 8 if not, and names "
      "the first difference.\n"
      "  cleave compare [OPTIONS] -- [PYTHON] SCRIPT ARGS         a PyTorch script, in the engine and in "
      "plain "
      "torch\n"
      "  cleave compare A.json B.json [OPTIONS] -- train OPTIONS  cleave train with two ds_configs\n"
      "Example: cleave compare -n 2 -- python train.py --deepspeed_config ds_config.json; cleave compare "
      "zero0.json zero3.json -n 1,4 -- train --model tiny --data corpus.txt",
      "compare");
  app.add_option("configs", o.configs, "two ds_config files")->expected(0, 2);
  std::string ranks = "1";
  app.add_option("-n,--nproc", ranks, "number of ranks on this machine; 1,4: of each ds_config")
      ->capture_default_str();
  app.add_option("--steps", o.steps, "number of optimizer steps to compare")
      ->check(integer(1, 1000000))
      ->capture_default_str();
  auto* against =
      app.add_option("--against", o.against,
                     "reference of a script: torch, deepspeed, or a ds_config file for the engine")
          ->capture_default_str();
  auto* seed = app.add_option("--seed", o.seed, "seed of Python, NumPy and torch before a script starts")
                   ->check(integer(0, 4294967295))
                   ->capture_default_str();
  app.add_option("--keep", o.keep, "new folder for the records of the runs (default: a temporary folder)");
  app.add_flag("--json", o.json, "print one JSON object");
  const auto dashes = std::ranges::find(arguments, "--");
  if (!parse(app, Arguments(arguments.begin(), dashes))) return false;
  if (dashes != arguments.end()) o.command.assign(dashes + 1, arguments.end());
  const bool script = o.configs.empty();
  o.ranks = ranks_of(ranks, script ? 1 : 2);
  require(script || o.configs.size() == 2, Exit::usage,
          "compare: needs two ds_config files (got {}), or a script after --, as in: cleave compare -n 2 -- "
          "python train.py",
          script ? "" : o.configs[0]);
  require(!o.command.empty(), Exit::usage, "compare: nothing to train; write {}",
          script ? "a script after --, as in: cleave compare -n 2 -- python train.py"
                 : "options after --, as in: cleave compare A.json B.json -- train --model tiny --data FILE");
  for (const auto* option : {against, seed})
    require(script || option->count() == 0, Exit::usage,
            "{}: only for scripts; write it after --, or leave it out", option->get_name());
  return true;
}

}  // namespace

int run_compare(const Arguments& arguments) {
  CompareOptions o;
  if (!parse_options(o, arguments)) return 0;
  if (o.configs.empty()) compare_script(o);
  return compare_configs(std::move(o));
}

}  // namespace cleave::app
