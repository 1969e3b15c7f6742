#include "monitor/mlflow_files.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "core/error.h"

namespace cleave::monitor {
namespace {

namespace fs = std::filesystem;

// Numbers of MLflow's file format.
constexpr int kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5, kLocal = 4;

int number_of(std::string_view status) {
  return status == "FINISHED" ? kFinished : status == "KILLED" ? kKilled : kFailed;
}

// A JSON string is also a YAML string.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// As Python writes it.
std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{}", value);
}

std::string new_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// Returns the value of a line "name: value" of a meta.yaml.
std::string value_in(const fs::path& file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name) && line.substr(name.size()).starts_with(": ")) {
      std::string value = line.substr(name.size() + 2);
      if (value.starts_with('"')) {
        const auto text = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
        return text.is_string() ? text.get<std::string>() : value;
      }
      if (value.size() > 1 && value.front() == '\'' && value.back() == '\'')
        return value.substr(1, value.size() - 2);
      return value;
    }
  return "";
}

}  // namespace

void MlflowFiles::write(const fs::path& name, std::string_view text, bool append) const {
  std::error_code failed;
  fs::create_directories(name.parent_path(), failed);
  std::ofstream file(name, append ? std::ios::binary | std::ios::app : std::ios::binary);
  if (!(file << text && file.flush()))
    throw MlflowFailure(MlflowFailure::Kind::lost, fmt::format("{} cannot be written", name.string()));
}

void MlflowFiles::find_experiment() {
  const fs::path root = target_.place;
  const std::string name = target_.experiment_name.empty() ? "Default" : target_.experiment_name;
  std::string id = !target_.experiment_id.empty() ? target_.experiment_id : name == "Default" ? "0" : "";
  std::error_code none;
  for (fs::directory_iterator at(root, none), end; id.empty() && !none && at != end; at.increment(none))
    if (value_in(at->path() / "meta.yaml", "name") == name) id = at->path().filename().string();
  if (id.empty()) id = fmt::format("{}", 100000000000000000 + int64_t(std::random_device{}()));
  experiment_ = fs::absolute(root / id);
  if (fs::exists(experiment_ / "meta.yaml", none)) return;
  write(experiment_ / "meta.yaml",
        fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: '{}'\nlast_update_time: "
                    "{}\nlifecycle_stage: active\nname: {}\n",
                    quoted("file://" + experiment_.string()), unix_ms(), id, unix_ms(), quoted(name)));
}

void MlflowFiles::open(const MlflowText& tags) {
  if (!run_.empty()) return;
  find_experiment();
  const fs::path run = experiment_ / (target_.run_id.empty() ? new_id() : target_.run_id);
  if (const std::string name = value_in(run / "meta.yaml", "run_name"); !name.empty())
    target_.run_name = name;
  if (target_.run_name.empty()) target_.run_name = "cleave-" + run.filename().string().substr(0, 8);
  const std::string began = value_in(run / "meta.yaml", "start_time");
  start_ms_ = began.empty() ? unix_ms() : std::strtoll(began.c_str(), nullptr, 10);
  if (const auto user = tags.find("mlflow.user"); user != tags.end()) user_ = user->second;
  for (const char* folder : {"metrics", "params", "tags", "artifacts"}) {
    std::error_code failed;
    fs::create_directories(run / folder, failed);
  }
  run_ = run;
  write_run(kRunning, 0);
  MlflowText all = tags;
  all["mlflow.runName"] = target_.run_name;
  log({}, {}, all);
}

void MlflowFiles::write_run(int status, int64_t end_ms) const {
  const std::string id = run_.filename().string();
  write(run_ / "meta.yaml",
        fmt::format(
            "artifact_uri: {}\ndeleted_time: null\nend_time: {}\nentry_point_name: ''\nexperiment_id: "
            "'{}'\nlifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: {}\nsource_name: "
            "''\nsource_type: {}\nsource_version: ''\nstart_time: {}\nstatus: {}\ntags: []\nuser_id: {}\n",
            quoted("file://" + (run_ / "artifacts").string()), end_ms > 0 ? std::to_string(end_ms) : "null",
            experiment_.filename().string(), quoted(id), quoted(target_.run_name), quoted(id), kLocal,
            start_ms_, status, quoted(user_)));
}

void MlflowFiles::log(std::span<const MlflowMetric> metrics, const MlflowText& params,
                      const MlflowText& tags) {
  std::map<std::string, std::string> lines;
  for (const MlflowMetric& m : metrics)
    lines[m.key] += fmt::format("{} {} {}\n", m.time_ms, python_number(m.value), m.step);
  for (const auto& [key, text] : lines) write(run_ / "metrics" / key, text, /*append=*/true);
  for (const auto& [key, value] : params)
    // A resumed run keeps the first value, as on a server.
    if (std::error_code none; !fs::exists(run_ / "params" / key, none)) write(run_ / "params" / key, value);
  for (const auto& [key, value] : tags) write(run_ / "tags" / key, value);
}

void MlflowFiles::artifact(const std::string& name, const std::string& text) {
  write(run_ / "artifacts" / name, text);
}

void MlflowFiles::finish(std::string_view status, int64_t time_ms) { write_run(number_of(status), time_ms); }

}  // namespace cleave::monitor
