#include "monitor/metrics.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "core/json_path.h"

namespace cleave::monitor {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value > 0 ? "\"inf\"" : "\"-inf\"";
  return fmt::format("{:.9g}", value);
}

// Shortest digits that read back as the same value.
std::string exact(double value) { return std::isfinite(value) ? fmt::format("{}", value) : number(value); }

// Position after the last newline of a file; 0 without one.
int64_t end_of_last_line(std::ifstream& file, int64_t size) {
  constexpr int64_t kChunk = 4096;
  char chunk[kChunk];
  for (int64_t end = size; end > 0; end = std::max<int64_t>(0, end - kChunk)) {
    const int64_t begin = std::max<int64_t>(0, end - kChunk);
    file.seekg(begin);
    file.read(chunk, end - begin);
    for (int64_t i = end - begin - 1; i >= 0; --i)
      if (chunk[i] == '\n') return begin + i + 1;
  }
  return 0;
}

// Ends a complete last line with a newline, and removes an incomplete one.
void finish_last_line(const std::string& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return;
  std::ifstream file(path, std::ios::binary);
  if (!file) return;  // opening it for writing reports the error
  const int64_t size = int64_t(std::filesystem::file_size(path));
  const int64_t end = end_of_last_line(file, size);
  if (end == size) return;
  file.clear();
  file.seekg(end);
  const std::string last{std::istreambuf_iterator<char>(file), {}};
  file.close();
  if (nlohmann::json::accept(last))
    OutputFile(path, OutputFile::Open::append).write("\n");
  else
    std::filesystem::resize_file(path, uintmax_t(end), none);
}

const std::string& prepared(const std::string& path, bool append) {
  if (append) finish_last_line(path);
  return path;
}

}  // namespace

double EvaluationMetrics::perplexity() const { return std::exp(loss); }

std::string to_json(const StepMetrics& m) {
  std::string bytes;
  for (const auto& [name, count] : m.comm_bytes)
    bytes += fmt::format("{}{}:{}", bytes.empty() ? "" : ",", nlohmann::json(name).dump(), count);
  std::string times;
  for (const auto& [name, ms] : m.times_ms)
    times += fmt::format("{}{}:{}", times.empty() ? "" : ",", nlohmann::json(name).dump(), number(ms));
  return fmt::format(
      R"({{"step":{},"epoch":{},"loss":{},"lr":{},"grad_norm":{},"loss_scale":{},"skipped":{},"skipped_total":{},"tokens":{},)"
      R"("tokens_per_s":{},"step_ms":{},"mfu":{},"comm_bytes":{{{}}}{}}})",
      m.step, number(m.epoch), number(m.loss), number(m.lr), number(m.grad_norm), exact(m.loss_scale),
      m.skipped, m.skipped_total, m.tokens, number(m.tokens_per_s), number(m.step_ms), number(m.mfu), bytes,
      times.empty() ? "" : fmt::format(R"(,"times_ms":{{{}}})", times));
}

MetricsFile::MetricsFile(const std::string& path, bool append)
    : file_(prepared(path, append), append ? OutputFile::Open::append : OutputFile::Open::replace) {}

void MetricsLines::event(std::string_view name, std::string_view fields) {
  const auto members = nlohmann::ordered_json::parse(fields, nullptr, /*allow_exceptions=*/false);
  CHECK(members.is_object(), "metrics event {}: expected a JSON object, got {}", name, fields);
  nlohmann::ordered_json line{{"event", name}};
  for (const auto& [key, value] : members.items())
    if (key != "event") line[key] = value;
  write(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void MetricsLines::start(std::string_view fields) { event("start", fields); }
void MetricsLines::end(std::string_view fields) { event("end", fields); }
void MetricsLines::evaluation(const EvaluationMetrics& m) {
  const std::string data = m.data.empty() ? "" : fmt::format(R"("data":{},)", nlohmann::json(m.data).dump());
  const std::string accuracy = m.accuracy ? fmt::format(R"(,"accuracy":{})", number(*m.accuracy)) : "";
  write(
      fmt::format(R"({{"event":"evaluation","step":{},"epoch":{},{}"validation_loss":{},"perplexity":{}{}}})",
                  m.step, number(m.epoch), data, number(m.loss), number(m.perplexity()), accuracy) +
      "\n");
}
void MetricsLines::checkpoint(const CheckpointMetrics& m) {
  write(fmt::format(R"({{"event":"checkpoint","kind":"{}","path":{},"step":{},"bytes":{},"seconds":{}}})",
                    m.kind, nlohmann::json(path_in_json(m.path)).dump(), m.step, m.bytes, number(m.seconds)) +
        "\n");
}
void MetricsLines::warning(const std::string& text) {
  write(fmt::format(R"({{"event":"warning","text":{}}})",
                    nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) +
        "\n");
}
void MetricsLines::choices(const std::map<std::string, std::string>& made) {
  event("choices", nlohmann::json{{"choices", made}}.dump());
}

std::map<std::string, std::string> choices_in(const std::string& path) {
  std::ifstream file(path);
  require(file.is_open(), Exit::usage,
          "cleave.product_choices: {} cannot be read; give the --metrics file of a run", path);
  std::map<std::string, std::string> found;
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || line.value("event", nlohmann::json()) != "choices" || !line.contains("choices"))
      continue;
    for (const auto& [name, choice] : line["choices"].items())
      if (choice.is_string()) found[name] = choice.get<std::string>();
  }
  require(!found.empty(), Exit::usage,
          "cleave.product_choices: {} contains no choices; give the --metrics file of a GPU run with "
          "cleave.tune_products",
          path);
  return found;
}

void MetricsLines::step(const StepMetrics& metrics) { write(to_json(metrics) + "\n"); }

std::string line_of(const StepMetrics& m) {
  return fmt::format("step={}, skipped={}, lr=[{:g}], loss={:.6g}", m.step, m.skipped_total, m.lr, m.loss);
}

std::vector<Scalar> scalars_of(const StepMetrics& m) {
  std::vector<Scalar> scalars = {{"Train/Samples/train_loss", m.loss},
                                 {"Train/Samples/lr", m.lr},
                                 {"Train/Samples/loss_scale", m.loss_scale},
                                 {"Train/Samples/grad_norm", m.grad_norm}};
  if (m.tokens > 0) scalars.push_back({"Train/Samples/tokens_per_s", m.tokens_per_s});
  for (const auto& [phase, ms] : m.times_ms)
    scalars.push_back({"Train/Samples/elapsed_time_ms_" + phase, ms});
  return scalars;
}

std::vector<Scalar> scalars_of(const EvaluationMetrics& m) {
  const std::string name = m.data.empty() ? "" : "_" + m.data;
  std::vector<Scalar> scalars = {{"Train/Samples/eval_loss" + name, m.loss}};
  if (m.accuracy) scalars.push_back({"Train/Samples/eval_accuracy" + name, *m.accuracy});
  return scalars;
}

}  // namespace cleave::monitor
