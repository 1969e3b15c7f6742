// Writes the events of a training to an MLflow run: metrics per step, the resolved configuration as
// parameters, and the ds_config and the plan as artifacts.
#pragma once
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "monitor/mlflow_store.h"
#include "monitor/sink.h"
#include "monitor/system_metrics.h"

namespace cleave::monitor {

struct MlflowSinkOptions {
  std::string place = {};                    // of the run, for messages
  std::chrono::milliseconds interval{2000};  // between requests
  std::chrono::milliseconds system_interval{10000};
  std::chrono::milliseconds first_wait{1000};  // after a failure; doubled up to a minute
  std::chrono::milliseconds patience{30000};   // with failures, before the warning
  std::chrono::milliseconds end{10000};        // longest repetition of failed requests at the end
  size_t capacity = 200000;                    // metrics that may wait
};

class MlflowSink final : public Sink {
 public:
  using Sink::take;
  MlflowSink(std::unique_ptr<MlflowStore> store, MlflowSinkOptions options);

  std::string name() const override { return "cleave.mlflow"; }
  EventKinds takes() const override;
  // Metrics have the names of the metrics file and the number of the step; points of scripts have their tag
  // and the number of trained samples.
  void take(const Started& e) override;
  void take(const Stepped& e) override;
  void take(const Evaluated& e) override;
  void take(const Measured& e) override;
  void take(const Communicated& e) override;
  void take(const Allocated& e) override;
  void take(const Checkpointed& e) override;
  void take(const Warned& e) override;
  void take(const Ended& e) override;
  std::chrono::milliseconds interval() const override { return options_.interval; }
  void wake() override { work(); }
  std::chrono::milliseconds longest_end() const override { return 2 * options_.end; }
  void end() override;

 private:
  using Clock = std::chrono::steady_clock;
  void add(const std::string& key, double value, int64_t step, int64_t time_ms);
  void work();
  bool sent();  // all that waits; false after a failure
  void send_next();
  void send_artifact();
  void failed(const MlflowFailure& failure);
  void drop_refused(const MlflowFailure& failure);
  void tell(const std::string& text);

  std::unique_ptr<MlflowStore> store_;
  MlflowSinkOptions options_;
  SystemMetrics system_;
  Clock::time_point next_{}, next_system_{}, good_ = Clock::now();
  int failures_ = 0;  // since the last success
  bool started_ = false, told_ = false, refused_ = false;
  std::string problem_ = "does not answer";  // the last failure
  std::string status_ = "FAILED";            // until Ended
  int64_t samples_of_system_ = 0, lost_ = 0;
  std::deque<MlflowMetric> metrics_;  // that wait, as the next three
  MlflowText params_, tags_;
  std::map<std::string, std::string> artifacts_;
  MlflowText run_tags_;  // of the new run
  std::string warnings_;
};

}  // namespace cleave::monitor
