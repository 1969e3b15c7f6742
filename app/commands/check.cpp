#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/add_options.h"
#include "app/commands.h"
#include "app/named_line.h"
#include "app/parse.h"
#include "config_schema/read_config.h"
#include "config_schema/summary.h"
#include "core/error.h"
#include "core/json.h"
#include "core/secrets.h"

namespace cleave::app {

namespace {

void add_reading(CLI::App& app, config::ReadOptions& options) {
  app.add_option("--world_size", options.world_size, "number of ranks of the job")
      ->capture_default_str()
      ->check(integer(1))
      ->each([&options](const std::string&) { options.world_assumed = false; });
  app.add_flag("--strict", options.strict, "treat warnings as errors");
  add_steps_option(app, options.auto_values);
  add_options(app, options.auto_values);
}

void say_named(const std::string& name, const std::string& value) {
  if (!value.empty()) std::printf("%s\n", named_line(name, value).c_str());
}

void say_updates(const config::ReadResult& r) {
  say_named("batch", config::batch_value(r.config));
  for (const config::NamedValue& line : config::update_lines(r)) say_named(line.name, line.value);
}

void say_all_keys(const config::ReadResult& r) {
  say_updates(r);
  std::fputs(config::format(r.notes).c_str(), stdout);
}

// Prints at most 14 lines.
void say_summary(const config::ReadResult& r) {
  say_updates(r);
  say_named("config", config::differences(r));
  say_named("decided", config::decided(r));
  constexpr size_t kMost = 8;
  const std::vector<std::string> lines = config::unusual(r);
  const size_t shown = lines.size() > kMost ? kMost - 1 : lines.size();
  for (size_t i = 0; i < shown; ++i) std::printf("%s\n", lines[i].c_str());
  if (shown < lines.size()) std::printf("%zu more keys have notes\n", lines.size() - shown);
  say_named("all keys", "add --all");
}

void say_problems(const config::ReadResult& r) {
  std::fputs(config::format(r.problems).c_str(), stderr);
  for (const config::Problem& p : r.elsewhere)
    std::fprintf(stderr, "note: %s: %s: %s\n", p.where.c_str(), p.path.c_str(), p.message.c_str());
}

// Returns null for a value that is unknown here.
nlohmann::json value_of(const std::string& text) {
  nlohmann::json value = json_or_nothing(text);
  if (value.is_discarded()) value = text.empty() ? nlohmann::json() : nlohmann::json(text);
  return value;
}

nlohmann::json as_json(const config::Note& note) {
  return {{"key", note.path},        {"value", value_of(without_secrets(note.value))},
          {"origin", note.origin},   {"status", note.status},
          {"meaning", note.meaning}, {"where", note.where}};
}

// Returns false if no key is, or ends with, `name`; empty: all keys.
bool list_keys(bool as_array, const std::string& name = "") {
  nlohmann::json keys = nlohmann::json::array();
  bool found = false;
  for (const config::KeyRow& row : config::list_keys()) {
    if (!name.empty() && row.path != name && !row.path.ends_with("." + name)) continue;
    found = true;
    if (as_array)
      keys.push_back({{"key", row.path},
                      {"type", row.type},
                      {"default", value_of(row.default_text)},
                      {"status", row.status},
                      {"honoured_by", row.honoured_by},
                      {"meaning", row.meaning}});
    else
      std::printf(
          "%s (%s, default %s): %s%s: %s\n", row.path.c_str(), row.type.c_str(), row.default_text.c_str(),
          row.status.c_str(),
          row.honoured_by.empty() || row.honoured_by == "both" ? "" : (" by " + row.honoured_by).c_str(),
          row.meaning.c_str());
  }
  if (as_array && found) std::printf("%s\n", keys.dump(2).c_str());
  return found;
}

const config::ReadOptions kReading{
    .world_origin = "--world_size", .world_assumed = true, .steps_may_be_open = true};

}  // namespace

int run_check(const Arguments& arguments) {
  CLI::App app(
      "Lists all errors of ds_config files at once, with file:line:column, key and nearest known "
      "key. For a file without errors, prints the decided values and the notes.\nExample: cleave check "
      "--world_size 8 ds_config.json",
      "check");
  std::vector<std::string> files;
  config::ReadOptions options = kReading;
  bool quiet = false, all = false;
  app.add_option("file", files, "ds_config files")->required();
  add_reading(app, options);
  auto* every = app.add_flag("--all", all, "print all keys with value, origin and effect");
  app.add_flag("--quiet", quiet, "print errors and warnings only")->excludes(every);
  if (!parse(app, arguments)) return 0;
  bool good = true;
  for (const std::string& file : files) {
    const config::ReadResult r = config::read_ds_config_file(file, options);
    say_problems(r);
    good = good && r.ok();
    std::printf("%s: %s\n", file.c_str(), r.ok() ? "accepted" : "refused");
    if (r.ok() && !quiet) all ? say_all_keys(r) : say_summary(r);
  }
  return int(good ? Exit::ok : Exit::usage);
}

int run_explain(const Arguments& arguments) {
  CLI::App app(
      "Prints value, origin and effect of each key of a ds_config, or the meaning of one key.\n"
      "Example: cleave explain --world_size 8 ds_config.json --json; cleave explain overlap_comm",
      "explain");
  std::string file;
  config::ReadOptions options = kReading;
  bool as_array = false, every = false;
  app.add_option("file", file, "ds_config file, or a key");
  add_reading(app, options);
  app.add_flag("--json", as_array, "print a JSON array with one object per key");
  app.add_flag("--keys", every, "list all supported keys instead of the keys of a file");
  if (!parse(app, arguments)) return 0;
  if (every) return list_keys(as_array), 0;
  require(!file.empty(), Exit::usage, "explain: nothing to explain; give a ds_config file, a key, or --keys");
  if (std::error_code none; !std::filesystem::exists(file, none) && list_keys(as_array, file)) return 0;
  const config::ReadResult r = config::read_ds_config_file(file, options);
  say_problems(r);
  if (!r.ok()) return int(Exit::usage);
  if (!as_array) return say_all_keys(r), 0;
  nlohmann::json keys = nlohmann::json::array();
  for (const config::Note& note : r.notes) keys.push_back(as_json(note));
  std::printf("%s\n", keys.dump(2).c_str());
  return 0;
}

}  // namespace cleave::app
