#include "monitor/live/run_state.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/version.h"

namespace cleave::monitor {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kColumns{"step", "epoch", "loss", "lr", "grad_norm", "tokens_per_s", "step_ms", "mfu"};
using Row = std::array<double, kColumns.size()>;

// Numbers that JSON lacks are strings in metrics.
double number_of(const Json& line, const char* name) {
  const auto at = line.find(name);
  if (at == line.end()) return std::nan("");
  if (at->is_number()) return at->get<double>();
  return *at == "inf" ? HUGE_VAL : *at == "-inf" ? -HUGE_VAL : std::nan("");
}

// Doubles have all integers up to this one.
bool has_step(const Json& line) {
  const auto step = line.find("step");
  return step != line.end() && step->is_number_integer() && *step >= 0 && *step <= int64_t{1} << 53;
}

Json in_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// Prometheus's text: https://prometheus.io/docs/instrumenting/exposition_formats
class Exposition {
 public:
  void metric(const char* name, const char* type, const char* help) {
    name_ = fmt::format("cleave_{}", name);
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help, type);
  }
  void sample(double value, const std::vector<std::pair<const char*, std::string>>& labels = {}) {
    std::string inside;
    for (const auto& [label, text] : labels)
      inside += fmt::format("{}{}=\"{}\"", inside.empty() ? "" : ",", label, escaped(text));
    const std::string number = std::isnan(value)   ? "NaN"
                               : std::isinf(value) ? value > 0 ? "+Inf" : "-Inf"
                                                   : fmt::format("{}", value);
    text_ += fmt::format("{}{} {}\n", name_, inside.empty() ? "" : "{" + inside + "}", number);
  }
  void single(const char* name, const char* type, const char* help, double value) {
    metric(name, type, help);
    sample(value);
  }
  std::string text() && { return std::move(text_); }

 private:
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text)
      out += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
    return out;
  }
  std::string name_, text_;
};

}  // namespace

// A series whose points are means of equally many steps, with more steps per point as it grows.
class RunCurve {
 public:
  void add(const Row& row) {
    for (size_t c = 0; c < row.size(); ++c) sum_[c] += row[c];
    sum_[0] = row[0] * double(++count_);  // a point is at its last step
    if (count_ < stride_) return;
    points_.push_back(mean());
    sum_ = {}, count_ = 0;
    if (points_.size() >= RunState::kMostPoints) halve();
  }
  // Removes points from a step on: a resumed run repeats steps.
  void leave(double step) {
    while (!points_.empty() && points_.back()[0] >= step) points_.pop_back();
    if (count_ > 0 && sum_[0] / double(count_) >= step) sum_ = {}, count_ = 0;
  }
  int64_t stride() const { return stride_; }
  Json after(double step) const {
    Json rows = Json::array();
    const auto add = [&](const Row& point) {
      Json& row = rows.emplace_back(Json::array());
      row.push_back(int64_t(point[0]));
      for (size_t c = 1; c < point.size(); ++c) row.push_back(in_json(point[c]));
    };
    for (const Row& point : points_)
      if (point[0] > step) add(point);
    return rows;
  }

 private:
  Row mean() const {
    Row out = sum_;
    for (double& value : out) value /= double(count_);
    return out;
  }
  void halve() {
    std::vector<Row> half;
    for (size_t i = 0; i + 1 < points_.size(); i += 2) {
      Row& both = half.emplace_back(points_[i + 1]);
      for (size_t c = 1; c < both.size(); ++c) both[c] = (both[c] + points_[i][c]) / 2;
    }
    if (points_.size() % 2 == 1)
      for (size_t c = 0; c < sum_.size(); ++c)
        sum_[c] = points_.back()[c] * double(stride_), count_ = stride_;
    points_ = std::move(half), stride_ *= 2;
  }

  std::vector<Row> points_;
  Row sum_{};
  int64_t count_ = 0, stride_ = 1;
};

struct RunState::State {
  std::string name;
  mutable std::mutex mutex;
  Json start = Json::object(), end = Json::object(), last = Json::object(), choices = Json::object();
  Json checkpoints = Json::array();
  RunCurve curve;
  std::map<std::string, std::vector<Json>> evaluations;
  std::deque<std::string> warnings;
  double tokens = 0;
  std::map<std::string, double> sent;  // bytes, by collective
  int64_t read = 0;                    // bytes of the file so far

  void step(const Json& line) {
    Row row;
    for (size_t c = 0; c < row.size(); ++c) row[c] = number_of(line, kColumns[c]);
    if (!last.empty() && row[0] <= number_of(last, "step")) curve.leave(row[0]);
    curve.add(row);
    last = line;
    if (const double more = number_of(line, "tokens"); std::isfinite(more)) tokens += more;
    if (const auto bytes = line.find("comm_bytes"); bytes != line.end() && bytes->is_object())
      for (const auto& [collective, count] : bytes->items())
        if (count.is_number()) sent[collective] += count.get<double>();
  }

  void event(const std::string& kind, Json line) {
    line.erase("event");
    if (kind == "start") start = std::move(line), end = Json::object();
    if (kind == "end") end = std::move(line);
    if (kind == "choices" && line.contains("choices") && line["choices"].is_object())
      choices.update(line["choices"]);
    if (kind == "checkpoint") keep(checkpoints, std::move(line));
    if (kind == "warning" && line.contains("text") && line["text"].is_string()) {
      warnings.push_back(line["text"].get<std::string>());
      if (warnings.size() > kMostWarnings) warnings.pop_front();
    }
    if (kind == "evaluation") {
      const auto data = line.find("data");
      std::vector<Json>& of_data =
          evaluations[data != line.end() && data->is_string() ? data->get<std::string>() : ""];
      of_data.push_back(std::move(line));
      if (of_data.size() > kMostPoints) of_data.erase(of_data.begin());
    }
  }

  static void keep(Json& list, Json one) {
    list.push_back(std::move(one));
    if (list.size() > kMostWarnings) list.erase(list.begin());
  }
};

RunState::RunState(std::string name) : state_(std::make_unique<State>()) { state_->name = std::move(name); }
RunState::~RunState() = default;

bool RunState::add(std::string_view text) {
  Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.is_object()) return false;
  const auto kind = line.find("event");
  if (kind == line.end() ? !has_step(line) : !kind->is_string()) return false;
  const std::lock_guard lock(state_->mutex);
  if (kind == line.end())
    state_->step(line);
  else
    state_->event(kind->get<std::string>(), line);
  return true;
}

void RunState::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.is_open(), Exit::usage, "{}: cannot be read; give the --metrics file of a run", path);
  file.seekg(state_->read);
  for (std::string text; std::getline(file, text) && !file.eof(); state_->read += int64_t(text.size()) + 1)
    require(
        text.empty() || add(text), Exit::usage,
        "{}: not a metrics file (got a line \"{}\", expected JSON objects); give the --metrics file of a run",
        path, text.substr(0, 40));
}

std::string RunState::as_json(int64_t after) const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  Json evaluations = Json::object();
  for (const auto& [data, points] : s.evaluations) evaluations[data] = points;
  const Json out{{"name", s.name},
                 {"start", s.start},
                 {"end", s.end},
                 {"last", s.last},
                 {"columns", kColumns},
                 {"stride", s.curve.stride()},
                 {"curve", s.curve.after(double(after))},
                 {"evaluations", evaluations},
                 {"choices", s.choices},
                 {"checkpoints", s.checkpoints},
                 {"warnings", s.warnings}};
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string RunState::prometheus() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  Exposition out;
  const auto text = [&](const char* name) {
    const auto at = s.start.find(name);
    return at != s.start.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  out.metric("run_info", "gauge", "The run: always 1.");
  out.sample(1, {{"version", std::string(build::version)}, {"name", s.name}, {"model", text("model")}});
  if (s.start.contains("world_size"))
    out.single("ranks", "gauge", "Ranks of the job.", number_of(s.start, "world_size"));
  if (s.start.contains("steps"))
    out.single("planned_steps", "gauge", "Steps of the whole training.", number_of(s.start, "steps"));
  if (!s.last.empty()) {
    const auto of_step = [&](const char* name, const char* type, const char* help, const char* field,
                             double unit = 1) {
      out.single(name, type, help, number_of(s.last, field) * unit);
    };
    of_step("step", "counter", "Optimizer steps done, with skipped ones.", "step");
    of_step("skipped_steps_total", "counter", "Steps skipped because of an overflow.", "skipped_total");
    of_step("loss", "gauge", "Mean loss of the last step.", "loss");
    of_step("learning_rate", "gauge", "Learning rate of the last step.", "lr");
    of_step("gradient_norm", "gauge", "Norm of the gradients of the last step, before clipping.",
            "grad_norm");
    of_step("loss_scale", "gauge", "Loss scale of the last step.", "loss_scale");
    of_step("step_seconds", "gauge", "Duration of the last step.", "step_ms", 1e-3);
    of_step("tokens_per_second", "gauge", "Tokens of the last step, over all ranks, per second.",
            "tokens_per_s");
    of_step("model_flops_utilization", "gauge", "Share of the measured rate of a product, 0 to 1.", "mfu");
    out.single("tokens_total", "counter", "Tokens trained since the process started.", s.tokens);
  }
  if (!s.sent.empty()) {
    out.metric("sent_bytes_total", "counter", "Bytes that rank 0 sent, by collective.");
    for (const auto& [collective, bytes] : s.sent) out.sample(bytes, {{"collective", collective}});
  }
  if (const auto times = s.last.find("times_ms"); times != s.last.end() && times->is_object()) {
    out.metric("phase_seconds", "gauge", "Duration of each phase of the last step.");
    for (const auto& [phase, ms] : times->items())
      if (ms.is_number()) out.sample(ms.get<double>() * 1e-3, {{"phase", phase}});
  }
  if (const auto memory = s.start.find("memory_planned"); memory != s.start.end() && memory->is_object()) {
    out.metric("memory_planned_bytes", "gauge", "Planned memory of rank 0, by kind of memory and use.");
    for (const auto& [kind, uses] : memory->items())
      if (uses.is_object())
        for (const auto& [use, bytes] : uses.items())
          if (bytes.is_number()) out.sample(bytes.get<double>(), {{"memory", kind}, {"use", use}});
  }
  if (!s.evaluations.empty()) {
    out.metric("validation_loss", "gauge", "Loss of the last evaluation.");
    for (const auto& [data, points] : s.evaluations)
      out.sample(number_of(points.back(), "validation_loss"), {{"data", data}});
  }
  return std::move(out).text();
}

}  // namespace cleave::monitor
