// Writes the events of a training to a metrics file.
#pragma once
#include <string>

#include "monitor/metrics.h"
#include "monitor/sink.h"

namespace cleave::monitor {

class MetricsSink final : public Sink {
 public:
  using Sink::take;
  // As MetricsFile.
  explicit MetricsSink(const std::string& path, bool append = false) : file_(path, append) {}
  std::string name() const override { return "--metrics"; }
  EventKinds takes() const override {
    return kinds_of<Started, Stepped, Evaluated, Checkpointed, Warned, Chosen, Ended>();
  }
  void take(const Started& e) override { file_.start(e.fields); }
  void take(const Stepped& e) override { file_.step(e.metrics); }
  void take(const Evaluated& e) override { file_.evaluation(e.metrics); }
  void take(const Checkpointed& e) override {
    file_.checkpoint({std::string(name_of(e.kind)), e.path, e.step, e.bytes, e.seconds});
  }
  void take(const Warned& e) override { file_.warning(e.text); }
  void take(const Chosen& e) override { file_.choices(e.choices); }
  void take(const Ended& e) override { file_.end(e.fields); }

 private:
  MetricsFile file_;
};

}  // namespace cleave::monitor
