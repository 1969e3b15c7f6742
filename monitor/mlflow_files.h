// A run in a folder of MLflow's file format ("mlruns"), without a server.
#pragma once
#include <filesystem>
#include <string>

#include "monitor/mlflow_store.h"
#include "monitor/mlflow_target.h"

namespace cleave::monitor {

class MlflowFiles final : public MlflowStore {
 public:
  // Writes nothing yet.
  explicit MlflowFiles(MlflowTarget target) : target_(std::move(target)) {}

  void open(const MlflowText& tags) override;
  void log(std::span<const MlflowMetric> metrics, const MlflowText& params, const MlflowText& tags) override;
  void artifact(const std::string& name, const std::string& text) override;
  void finish(std::string_view status, int64_t time_ms) override;

 private:
  void find_experiment();
  void write_run(int status, int64_t end_ms) const;
  void write(const std::filesystem::path& name, std::string_view text, bool append = false) const;

  MlflowTarget target_;
  std::filesystem::path experiment_, run_;  // folders
  int64_t start_ms_ = 0;
  std::string user_;
};

}  // namespace cleave::monitor
