#include "launcher/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "app/parse.h"
#include "core/error.h"

namespace cleave {
namespace {

// Where a command stands that no -- separates from the launcher's own options; the end where none does.
size_t command_begins(const Arguments& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    if (a == "--") break;
    if (!a.starts_with('-')) return i;
    const bool has_value = a == "-n" || a == "--nproc" || a == "--master_port" || a == "--master-port";
    if (has_value) ++i;
  }
  return arguments.size();
}

}  // namespace

int run_launch(const Arguments& arguments) {
  CLI::App app(
      "Starts N ranks of a command on this machine and returns the code of the rank that decided.\n"
      "Example: cleave launch -n 2 -- train --deepspeed_config ds_config.json --model tiny --data "
      "corpus.txt\n"
      "After -- stands a command of cleave's or any program.",
      "launch");
  LaunchOptions options;
  bool unbound = false;
  app.add_option("-n,--nproc", options.ranks, "ranks to start")->required()->check(integer(1));
  app.add_option("--master_port", options.port, "port of the rendezvous (default: a free one)")
      ->check(integer(0, 65535));
  app.add_flag("--no_bind", unbound, "leave the ranks unbound instead of giving each its own cores");

  if (const size_t at = command_begins(arguments); at < arguments.size())
    fail(Exit::usage, "-- is missing before {}; write: cleave launch {} -- {}", arguments[at],
         fmt::join(arguments.begin(), arguments.begin() + long(at), " "),
         fmt::join(arguments.begin() + long(at), arguments.end(), " "));
  const auto split = std::find(arguments.begin(), arguments.end(), "--");
  if (!parse(app, {arguments.begin(), split})) return 0;
  require(split != arguments.end() && split + 1 != arguments.end(), Exit::usage,
          "launch: nothing to start; write the command after --, as in: cleave launch -n 2 -- train ...");
  options.command.assign(split + 1, arguments.end());
  options.bind_cores = !unbound;
  for (const Command& c : kCommands)
    if (options.command[0] == c.name)
      options.command.insert(options.command.begin(),
                             std::filesystem::read_symlink("/proc/self/exe").string());
  options.rank0_inherits_output = isatty(STDOUT_FILENO) != 0;

  const LaunchResult result =
      launch_local(options, {.output = [](std::string_view line, bool is_error) {
                     std::fwrite(line.data(), 1, line.size(), is_error ? stderr : stdout);
                     std::fflush(is_error ? stderr : stdout);
                   }});
  if (!result.message.empty() && result.exit != int(Exit::stopped))
    std::fprintf(stderr, "error: %s\n", result.message.c_str());
  return result.exit;
}

}  // namespace cleave
