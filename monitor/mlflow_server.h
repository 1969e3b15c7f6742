// A run of an MLflow tracking server, by its REST interface, version 2.0.
#pragma once
#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/http.h"
#include "monitor/mlflow_store.h"
#include "monitor/mlflow_target.h"

namespace cleave::monitor {

class MlflowServer final : public MlflowStore {
 public:
  using Send = std::function<HttpAnswer(const HttpRequest&)>;

  // Sends nothing yet. Throws Error(usage) without libcurl.
  explicit MlflowServer(MlflowTarget target);
  // Sends by another way than libcurl.
  MlflowServer(MlflowTarget target, Send send);

  void open(const MlflowText& tags) override;
  void log(std::span<const MlflowMetric> metrics, const MlflowText& params, const MlflowText& tags) override;
  // Azure ML has smaller limits.
  size_t most_metrics() const override { return target_.azure ? 150 : 1000; }
  size_t most_params_of_run() const override { return target_.azure ? 200 : 2000; }
  size_t longest_param() const override { return target_.azure ? 500 : 6000; }
  // Sends to a server that keeps artifacts itself, and writes to a folder of this machine. Other places are
  // an MlflowFailure of kind refused, except Azure ML, which stores the folder `outputs`.
  void artifact(const std::string& name, const std::string& text) override;
  // Leaves the status of a job's run to Azure ML.
  void finish(std::string_view status, int64_t time_ms) override;

 private:
  using Clock = std::chrono::steady_clock;
  nlohmann::json call(const char* method, const std::string& path, const nlohmann::json& body);
  std::string sent(const char* method, const std::string& url, const std::string& body);
  void put(const std::string& path, const std::string& text);
  void refresh_token();
  std::string experiment();

  MlflowTarget target_;
  Send send_;
  bool opened_ = false;
  std::string experiment_, run_, artifacts_;  // ids, and the place of the run's files
  Clock::time_point refreshed_ = Clock::now();
};

}  // namespace cleave::monitor
