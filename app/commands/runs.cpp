#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "app/commands.h"
#include "app/parse.h"
#include "app/run_files.h"
#include "core/error.h"
#include "core/printable.h"
#include "monitor/live/page.h"
#include "monitor/live/run_state.h"
#include "monitor/output_file.h"

namespace cleave::app {
namespace {

using nlohmann::ordered_json;

std::string name_of_run(std::string path) {
  if (path.ends_with(".jsonl")) path.resize(path.size() - 6);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

void flatten(const ordered_json& value, const std::string& path, std::map<std::string, std::string>& out) {
  if (!value.is_object()) {
    out[path] = value.is_string() ? value.get<std::string>() : value.dump();
    return;
  }
  for (const auto& [key, inside] : value.items()) flatten(inside, path.empty() ? key : path + "." + key, out);
}

// Resolved settings, without measurements.
std::map<std::string, std::string> settings_of(const ordered_json& run) {
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : run["start"].items())
    if (key != "memory_planned" && key != "matmul_flops_per_s" && key != "products")
      flatten(value, key == "config" ? "" : key, out);
  return out;
}

std::string shown(const ordered_json& object, const char* name, const char* format = "{:.5g}") {
  const auto at = object.find(name);
  if (at == object.end() || at->is_null()) return "-";
  return at->is_number() ? fmt::format(fmt::runtime(format), at->get<double>())
                         : printable(at->is_string() ? at->get<std::string>() : at->dump());
}

std::string best_validation(const ordered_json& run) {
  std::optional<double> best;
  for (const auto& [data, points] : run["evaluations"].items())
    for (const ordered_json& point : points)
      if (const auto loss = point.find("validation_loss"); loss != point.end() && loss->is_number())
        best = std::min(best.value_or(HUGE_VAL), loss->get<double>());
  return best ? fmt::format("{:.5g}", *best) : "-";
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += c + 1 < row.size() ? fmt::format("{:<{}}  ", row[c], widths[c]) : row[c];
    std::printf("%s\n", line.c_str());
  }
}

void print_runs(const std::vector<ordered_json>& runs) {
  std::vector<std::vector<std::string>> results{
      {"run", "steps", "loss", "best validation loss", "tokens/s", "ms/step"}};
  for (const ordered_json& run : runs) {
    const ordered_json& last = run["last"];
    results.push_back({printable(run["name"].get<std::string>()), shown(last, "step", "{:.0f}"),
                       shown(last, "loss"), best_validation(run), shown(last, "tokens_per_s"),
                       shown(last, "step_ms")});
  }
  print_table(results);
  if (runs.size() < 2) return;
  std::vector<std::map<std::string, std::string>> all;
  std::set<std::string> names;
  for (const ordered_json& run : runs)
    for (const auto& [name, value] : all.emplace_back(settings_of(run))) names.insert(name);
  std::vector<std::vector<std::string>> different{{"setting"}};
  for (const ordered_json& run : runs) different[0].push_back(printable(run["name"].get<std::string>()));
  for (const std::string& name : names) {
    std::set<std::string> values;
    std::vector<std::string> row{printable(name)};
    for (const auto& settings : all) {
      const auto at = settings.find(name);
      row.push_back(at == settings.end() ? "-" : printable(at->second));
      values.insert(row.back());
    }
    if (values.size() > 1) different.push_back(row);
  }
  std::printf("\n");
  if (different.size() == 1)
    std::printf("all settings are equal\n");
  else
    print_table(different);
}

}  // namespace

int run_runs(const Arguments& arguments) {
  CLI::App app(
      "Compares runs by their metrics: results, and the settings that differ.\nExample: cleave runs a.jsonl "
      "b.jsonl "
      "--html runs.html",
      "runs");
  std::vector<std::string> names;
  std::string html;
  bool as_json = false;
  app.add_option("RUN", names, "file of cleave train --metrics, or a folder with one")->required();
  app.add_option("--html", html, "also write a page with the curves of all runs");
  app.add_flag("--json", as_json, "print one JSON array instead");
  if (!parse(app, arguments)) return 0;
  std::vector<std::string> texts;
  std::vector<ordered_json> runs;
  for (const std::string& name : names) {
    monitor::RunState state(name_of_run(name));
    state.read(metrics_file_of(name));
    texts.push_back(state.as_json());
    runs.push_back(ordered_json::parse(texts.back()));
    require(!runs.back()["last"].empty(), Exit::usage, "{}: has no steps yet; run this again later", name);
  }
  if (as_json)
    std::printf("[%s]\n", fmt::format("{}", fmt::join(texts, ",\n ")).c_str());
  else
    print_runs(runs);
  if (html.empty()) return 0;
  monitor::OutputFile(html, monitor::OutputFile::Open::replace).write(monitor::page_of(texts));
  std::fprintf(stderr, "%s: open it in a browser\n", printable(html).c_str());
  return 0;
}

}  // namespace cleave::app
