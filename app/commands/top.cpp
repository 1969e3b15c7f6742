#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "app/commands.h"
#include "app/parse.h"
#include "app/run_files.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/units.h"
#include "monitor/live/http_server.h"
#include "monitor/live/run_state.h"

namespace cleave::app {
namespace {

using nlohmann::ordered_json;

double number_in(const ordered_json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number() ? at->get<double>() : std::nan("");
}

std::string said(double value, const char* format = "{:.5g}") {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value) : "-";
}

std::string duration_of(double seconds) {
  const auto s = int64_t(seconds);
  return s >= 3600 ? fmt::format("{} h {} min", s / 3600, s / 60 % 60)
         : s >= 60 ? fmt::format("{} min {} s", s / 60, s % 60)
                   : fmt::format("{} s", s);
}

// Draws a series in one line of `width` characters, each the mean of its steps.
std::string drawn(const ordered_json& run, const char* column, int width) {
  static constexpr std::array kLevels{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const ordered_json& names = run["columns"];
  const size_t at = size_t(std::find(names.begin(), names.end(), column) - names.begin());
  std::vector<double> values;
  for (const ordered_json& row : run["curve"])
    if (at < row.size() && row[at].is_number()) values.push_back(row[at].get<double>());
  if (values.empty()) return {};
  const auto cells = std::min(size_t(width), values.size());
  std::vector<double> means(cells);
  for (size_t c = 0; c < cells; ++c) {
    const size_t begin = c * values.size() / cells, end = (c + 1) * values.size() / cells;
    for (size_t i = begin; i < end; ++i) means[c] += values[i] / double(end - begin);
  }
  const auto [low, high] = std::ranges::minmax(means);
  std::string out;
  for (const double mean : means)
    out +=
        kLevels[size_t(std::lround((high > low ? (mean - low) / (high - low) : 0.5) * (kLevels.size() - 1)))];
  return out;
}

std::string screen_of(const ordered_json& run, int columns) {
  const ordered_json &start = run["start"], &last = run["last"];
  std::string out = printable(run["name"].get<std::string>());
  if (const auto model = start.find("model"); model != start.end() && model->is_string())
    out += ", " + printable(model->get<std::string>());
  if (const double ranks = number_in(start, "world_size"); ranks > 0)
    out += fmt::format(", {:.0f} rank{}", ranks, ranks > 1 ? "s" : "");
  out += run["end"].empty() ? "\n" : ", ended\n";
  if (last.empty()) return out + "no step yet\n";
  const double step = number_in(last, "step"), steps = number_in(start, "steps"),
               ms = number_in(last, "step_ms");
  const int width = std::max(10, std::min(columns - 12, 100));
  if (steps > 0) {
    const int full = int(std::clamp(step / steps, 0.0, 1.0) * width);
    for (int i = 0; i < width; ++i) out += i < full ? "█" : "░";
    out += fmt::format(" {:.0f} %\n", 100 * step / steps);
  }
  out += fmt::format("step      {:.0f}{}", step, steps > 0 ? fmt::format(" of {:.0f}", steps) : "");
  if (steps > step && std::isfinite(ms) && run["end"].empty())
    out += ", about " + duration_of((steps - step) * ms / 1e3) + " left";
  out += fmt::format("\nloss      {}  learning rate {}  gradient norm {}\n", said(number_in(last, "loss")),
                     said(number_in(last, "lr")), said(number_in(last, "grad_norm")));
  for (const auto& [data, points] : run["evaluations"].items())
    out += fmt::format("validation loss {}{}\n", data.empty() ? "" : printable(data) + " ",
                       said(number_in(points.back(), "validation_loss")));
  if (std::isfinite(ms)) {
    out += fmt::format("speed     {} ms per step", said(ms));
    if (const double rate = number_in(last, "tokens_per_s"); rate > 0)
      out += fmt::format(", {} tokens/s", said(rate, "{:.0f}"));
    if (const double mfu = number_in(last, "mfu"); mfu > 0)
      out += fmt::format(", {:.1f} % of the measured peak", 100 * mfu);
    out += "\n";
  }
  if (const auto times = last.find("times_ms"); times != last.end()) {
    out += "phases   ";
    for (const auto& [phase, time] : times->items())
      if (time.is_number()) out += fmt::format(" {} {} ms", phase, said(time.get<double>(), "{:.4g}"));
    out += "\n";
  }
  if (const double skipped = number_in(last, "skipped_total"); skipped > 0)
    out +=
        fmt::format("skipped   {:.0f} steps, loss scale {}\n", skipped, said(number_in(last, "loss_scale")));
  out += "\nloss\n" + drawn(run, "loss", width) + "\n";
  for (const ordered_json& warning : run["warnings"]) out += printable(warning.get<std::string>()) + "\n";
  return out;
}

// Returns a function that returns the state of a run as text: asks a server, or reads a file again.
std::function<std::string()> source_of(const std::string& run) {
  if (!std::filesystem::exists(run) && run.find(':') != std::string::npos) {
    const size_t colon = run.rfind(':');
    const std::string host = run.substr(0, colon), token = environment_value("CLEAVE_HTTP_TOKEN");
    const uint16_t port = monitor::HttpAddress::read(run.substr(colon + 1), run).port;
    return [=] { return monitor::http_get(host, port, "/status", token); };
  }
  const std::string file = metrics_file_of(run);
  auto state = std::make_shared<monitor::RunState>(run);
  return [=] {
    state->read(file);
    return state->as_json();
  };
}

int columns_here() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

}  // namespace

int run_top(const Arguments& arguments) {
  CLI::App app(
      "Shows a run in the terminal until it ends: step, loss, speed and warnings.\nExample: cleave top "
      "runs/text.jsonl\n         cleave top localhost:8080",
      "top");
  std::string run;
  bool once = false;
  double interval = 1;
  app.add_option("RUN", run,
                 "file of cleave train --metrics, a folder with one, or HOST:PORT of cleave train --http")
      ->required();
  app.add_flag("--once", once, "print the state once, as into a file or pipe");
  app.add_option("--interval", interval, "seconds between updates")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 3600.0));
  if (!parse(app, arguments)) return 0;
  once = once || isatty(STDOUT_FILENO) == 0;
  const auto source = source_of(run);
  while (true) {
    const ordered_json state = ordered_json::parse(source(), nullptr, /*allow_exceptions=*/false);
    require(state.is_object() && state.contains("curve") && state.contains("last"), Exit::usage,
            "{}: not a run of Cleave; give the address that cleave train --http prints", run);
    std::printf("%s%s", once ? "" : "\x1b[H\x1b[2J", screen_of(state, columns_here()).c_str());
    std::fflush(stdout);
    if (once || !state["end"].empty()) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(interval));
  }
}

}  // namespace cleave::app
