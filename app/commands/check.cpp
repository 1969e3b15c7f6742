#include <cstdio>

#include "app/add_options.h"
#include "app/commands.h"
#include "app/parse.h"
#include "config/read_config.h"
#include "config/summary.h"
#include "core/error.h"

namespace cleave::app {

int run_check(const Arguments& arguments) {
  CLI::App app(
      "Validates ds_config files: every error at once, with file:line:column, the key and the nearest known "
      "key.\n"
      "Example: cleave check --world_size 8 ds_config.json",
      "check");
  std::vector<std::string> files;
  config::ReadOptions options{.world_origin = "--world_size", .steps_may_be_open = true};
  bool quiet = false;
  app.add_option("file", files, "ds_config files")->required();
  app.add_option("--world_size", options.world_size, "all ranks of the job, for the batch arithmetic")
      ->capture_default_str()
      ->check(integer(1));
  app.add_flag("--strict", options.strict, "what would be a warning is an error");
  app.add_flag("--quiet", quiet, "no line for each key of a good file");
  add_steps_option(app, options.auto_values);
  add_options(app, options.auto_values);
  if (!parse(app, arguments)) return 0;
  bool good = true;
  for (const std::string& file : files) {
    const config::ReadResult r = config::read_ds_config_file(file, options);
    std::fputs(config::format(r.problems).c_str(), stderr);
    good = good && r.ok();
    std::printf("%s: %s\n", file.c_str(), r.ok() ? "accepted" : "refused");
    if (!r.ok() || quiet) continue;
    for (const std::string& line : config::update_lines(r)) std::printf("%s\n", line.c_str());
    std::fputs(config::format(r.notes).c_str(), stdout);
  }
  return int(good ? Exit::ok : Exit::usage);
}

}  // namespace cleave::app
