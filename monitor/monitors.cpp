#include "monitor/monitors.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/write_error.h"
#include "monitor/csv_monitor.h"
#include "monitor/metrics.h"
#include "monitor/mlflow_files.h"
#include "monitor/mlflow_server.h"
#include "monitor/mlflow_sink.h"
#include "monitor/mlflow_target.h"
#include "monitor/tensorboard.h"

namespace cleave::monitor {
namespace {

// Adds points to the curves in a file; x is the number of trained samples.
template <class File>
class Curves final : public Sink {
 public:
  using Sink::take;
  Curves(std::string key, File file) : key_(std::move(key)), file_(std::move(file)) {}
  std::string name() const override { return key_; }
  EventKinds takes() const override { return kinds_of<Stepped, Evaluated, Measured>(); }
  void take(const Stepped& e) override { write(scalars_of(e.metrics), e.samples); }
  void take(const Evaluated& e) override { write(scalars_of(e.metrics), e.samples); }
  void take(const Measured& e) override { write({&e.scalar, 1}, e.samples); }

 private:
  void write(std::span<const Scalar> scalars, int64_t samples) {
    for (const Scalar& scalar : scalars) file_.scalar(scalar.tag, scalar.value, samples);
  }
  std::string key_;
  File file_;
};

// Creates the folder. Opens no file of it, because a file may be a pipe whose reader comes later.
void require_folder(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const int error = failed ? failed.value() : ::access(folder.c_str(), W_OK | X_OK) != 0 ? errno : 0;
  require(error == 0, Exit::usage, "{}: cannot be created or written to: {}; {}", folder,
          std::strerror(error), remedy_of_writing(error));
}

std::unique_ptr<Sink> mlflow(const config::MlflowConfig& config) {
  MlflowTarget target = mlflow_target(config);
  const MlflowSinkOptions options{.place = target.shown()};
  std::unique_ptr<MlflowStore> store;
  if (target.server) {
    store = std::make_unique<MlflowServer>(std::move(target));
  } else {
    require_folder(target.place);
    store = std::make_unique<MlflowFiles>(std::move(target));
  }
  return std::make_unique<MlflowSink>(std::move(store), options);
}

}  // namespace

std::vector<std::unique_ptr<Sink>> monitors_of(const config::DsConfig& config) {
  const config::TensorBoardConfig& tensorboard = config.tensorboard;
  const config::CsvConfig& csv = config.csv_monitor;
  std::vector<std::unique_ptr<Sink>> sinks;
  if (tensorboard.enabled) {
    const std::filesystem::path base = tensorboard.output_path.empty() ? "./runs" : tensorboard.output_path;
    sinks.push_back(std::make_unique<Curves<TensorBoard>>(
        "tensorboard", TensorBoard((base / tensorboard.job_name).string())));
  }
  if (csv.enabled) {
    CsvMonitor tables(csv.output_path, csv.job_name);
    require_folder(std::filesystem::path(tables.path_of("")).parent_path().string());
    sinks.push_back(std::make_unique<Curves<CsvMonitor>>("csv_monitor", std::move(tables)));
  }
  if (config.mlflow.enabled) sinks.push_back(mlflow(config.mlflow));
  return sinks;
}

}  // namespace cleave::monitor
