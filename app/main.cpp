#include <fmt/format.h>

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "app/commands.h"
#include "app/parse.h"
#include "config_schema/wrong_variables.h"
#include "core/error.h"
#include "core/version.h"
#include "core/warnings.h"
#include "kernels/cpu/bodies.h"
#include "launcher/exit_code.h"

namespace cleave::app {
namespace {

void print_help() {
  std::printf(
      "cleave %s: trains models too large for one device from a ds_config.json\n\nusage: cleave COMMAND "
      "...\n\n",
      build::version.data());
  for (const Command& c : kCommands) std::printf("  %-10s %s\n", c.name, c.summary);
  std::printf("\nCOMMAND --help shows its options and an example.\n");
}

// DeepSpeed's launchers insert --local_rank=N directly after the program, before a command. The
// environment also has this number; it is compared and removed.
Arguments without_local_rank(Arguments all) {
  if (all.empty() || (!all[0].starts_with("--local_rank=") && !all[0].starts_with("--local-rank=")))
    return all;
  const std::string said = all[0].substr(all[0].find('=') + 1);
  const char* set = std::getenv("LOCAL_RANK");
  require(!set || said == set, Exit::usage,
          "--local_rank: conflicts with LOCAL_RANK (got {}, but LOCAL_RANK is {}); leave the option out",
          said, set ? set : "");
  all.erase(all.begin());
  return all;
}

// Returns true if standard output is a pipe without a reader, as after the end of head.
bool reader_ended() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

// The output of a command is its result, so lost output is an error. The output of a training or a
// job is a log; losing it is not.
int with_output_written(const Command& command, int code) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return code;
  const bool is_log = command.run == run_train || command.run == run_launch;
  if (!is_log && reader_ended()) return code != 0 ? code : 128 + SIGPIPE;
  constexpr const char* kLost =
      "standard output: cannot be written, and the output is lost; check the free space, or what reads the "
      "output";
  require(is_log || code != 0, Exit::usage, "{}", kLost);
  warn("{}", kLost);
  return code;
}

int run(const Arguments& all, bool as_deepspeed) {
  if (as_deepspeed) {
    config::refuse_wrong_variables(environ);
    return run_deepspeed(all);
  }
  if (all.empty() || all[0] == "--help" || all[0] == "-h" || all[0] == "help") {
    print_help();
    return all.empty() ? int(Exit::usage) : 0;
  }
  if (all[0] == "--version") {
    std::printf("cleave %s\n", build::version.data());
    return 0;
  }
  config::refuse_wrong_variables(environ);
  kernels::cpu::isa();  // fails if this CPU does not support CLEAVE_ISA
  for (const Command& c : kCommands)
    if (all[0] == c.name) return with_output_written(c, c.run({all.begin() + 1, all.end()}));
  std::vector<std::string> names;
  for (const Command& c : kCommands) names.emplace_back(c.name);
  fail(Exit::usage, "{}: unknown command{} (expected {})", all[0], did_you_mean(all[0], names),
       fmt::join(names, ", "));
}

}  // namespace
}  // namespace cleave::app

int main(int argc, char** argv) {
  return cleave::launcher::exit_code_of(
      [&] {
        const bool as_deepspeed = argc > 0 && std::string_view(basename(argv[0])) == "deepspeed";
        return cleave::app::run(cleave::app::without_local_rank({argv + 1, argv + argc}), as_deepspeed);
      },
      "internal error in cleave: please report it with the command");
}
