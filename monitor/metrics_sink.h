// Gives the events of a training to metrics: a file, or the state of a live run.
#pragma once
#include <memory>
#include <string>
#include <utility>

#include "monitor/metrics.h"
#include "monitor/sink.h"

namespace cleave::monitor {

class MetricsSink final : public Sink {
 public:
  using Sink::take;
  // name: of the option or key that asks for it.
  MetricsSink(std::string name, std::unique_ptr<MetricsLines> lines)
      : name_(std::move(name)), lines_(std::move(lines)) {}
  std::string name() const override { return name_; }
  EventKinds takes() const override {
    return kinds_of<Started, Stepped, Evaluated, Checkpointed, Warned, Chosen, Ended>();
  }
  void take(const Started& e) override { lines_->start(e.fields); }
  void take(const Stepped& e) override { lines_->step(e.metrics); }
  void take(const Evaluated& e) override { lines_->evaluation(e.metrics); }
  void take(const Checkpointed& e) override {
    lines_->checkpoint({std::string(name_of(e.kind)), e.path, e.step, e.bytes, e.seconds});
  }
  void take(const Warned& e) override { lines_->warning(e.text); }
  void take(const Chosen& e) override { lines_->choices(e.choices); }
  void take(const Ended& e) override { lines_->end(e.fields); }

 private:
  std::string name_;
  std::unique_ptr<MetricsLines> lines_;
};

}  // namespace cleave::monitor
