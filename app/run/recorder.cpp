#include "app/run/recorder.h"

#include <algorithm>
#include <functional>

#include "config_schema/ds_config.h"
#include "core/param_spec.h"

namespace cleave::app {
namespace {

std::vector<RecordedParameter> parameters_of(const runtime::Engine& engine) {
  const std::vector<std::string> trained = engine.trained();
  std::vector<RecordedParameter> out;
  for (const ParamSpec& p : engine.parameters())
    out.push_back({p.name, p.whole_numel(), std::ranges::find(trained, p.name) != trained.end()});
  return out;
}

RunArithmetic arithmetic_of(const config::DsConfig& config) {
  const DType type = runtime::model_dtype(config);
  const double rounding = config.fp8            ? 0x1p-4
                          : type == DType::fp32 ? 0x1p-24
                          : type == DType::fp16 ? 0x1p-11
                                                : 0x1p-8;
  return {rounding, config.optimizer.type == config::OptimizerType::lion};
}

// Returns 1 or -1, independent of the layout.
float sign_of(uint64_t name, uint64_t element) {
  uint64_t x = (name ^ element) + element * 0x9e3779b97f4a7c15;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x >> 63) ? 1.0f : -1.0f;
}

}  // namespace

Recorder::Recorder(const RecordOptions& options, runtime::Engine& engine, bool writes)
    : options_(options), engine_(engine), parameters_(parameters_of(engine)) {
  if (!options.follow.empty()) follow_.emplace(options.follow);
  if (writes) writer_.emplace(options.folder, parameters_, arithmetic_of(engine.config()));
  if (!follow_) weights(0);
  engine_.on_gradients([this] { gradients(); });
}

std::vector<float> Recorder::followed(const std::string& name, int64_t step) const {
  std::vector<float> values = follow_->read(RunRecord::Kind::weights, step, name);
  const uint64_t hash = std::hash<std::string>{}(name);
  if (options_.perturb > 0)
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = float(values[i] * (1 + options_.perturb * sign_of(hash, i)));
  return values;
}

void Recorder::begin_step() {
  if (!follow_) return;
  const int64_t step = engine_.step();
  engine_.set_parameters([&](const ParamSpec& p) { return followed(p.name, step); });
}

void Recorder::gradients() {
  const int64_t step = engine_.step() + 1;
  if (writer_) writer_->begin(RunRecord::Kind::gradients, step);
  for (const RecordedParameter& p : parameters_) {
    if (!p.trained) continue;
    const std::vector<float> values = engine_.gradient(p.name);
    if (writer_) writer_->append(values);
  }
  if (!follow_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const RecordedParameter& p = parameters_[i];
    if (!p.trained) continue;
    const std::vector<float> wanted = follow_->read(RunRecord::Kind::gradients, step, p.name);
    engine_.write_gradient(p.name, wanted);
    const std::vector<float> held = engine_.gradient(p.name);
    const double norm = l2_norm(wanted);
    if (writer_ && norm > 0) writer_->note_rounding(i, l2_distance(held, wanted) / norm);
  }
}

void Recorder::end_step(const runtime::StepResult& r) {
  weights(engine_.step());
  if (writer_) writer_->end_step({r.loss, r.lr, r.loss_scale, r.skipped});
}

void Recorder::weights(int64_t step) {
  if (writer_) writer_->begin(RunRecord::Kind::weights, step);
  for (const RecordedParameter& p : parameters_) {
    const std::vector<float> values = engine_.parameter(p.name);
    if (writer_) writer_->append(values);
  }
}

void Recorder::finish() {
  if (writer_) writer_->finish();
}

}  // namespace cleave::app
