#include "model/rope.h"

#include <array>
#include <cmath>
#include <mutex>
#include <numbers>

namespace cleave::model {
namespace {

double scaled(double frequency, const RopeScaling& s) {
  switch (s.kind) {
    case RopeScaling::Kind::none:
      return frequency;
    case RopeScaling::Kind::linear:
      return frequency / s.factor;
    case RopeScaling::Kind::llama3: {
      const double turns = double(s.original_positions) * frequency / (2 * std::numbers::pi);
      const double kept = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      if (turns < s.low_freq_factor) return frequency / s.factor;
      if (turns > s.high_freq_factor) return frequency;
      return (1 - kept) * frequency / s.factor + kept * frequency;
    }
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_frequencies(int64_t head_dim, double theta, const RopeScaling& scaling) {
  std::vector<double> out;
  for (int64_t i = 0; i < head_dim / 2; ++i)
    out.push_back(scaled(std::pow(theta, -2.0 * double(i) / double(head_dim)), scaling));
  return out;
}

RopeTable::RopeTable(int64_t p, const std::vector<double>& frequencies)
    : positions(p), half(int64_t(frequencies.size())) {
  for (int64_t position = 0; position < positions; ++position)
    for (const double f : frequencies) {
      cos.push_back(float(std::cos(double(position) * f)));
      sin.push_back(float(std::sin(double(position) * f)));
    }
}

std::vector<Tensor> RopeTable::tensors() const {
  const auto view = [&](const std::vector<float>& v) {
    return Tensor(const_cast<float*>(v.data()), DType::fp32, {positions, half}, MemoryKind::host);
  };
  return {view(cos), view(sin)};
}

std::shared_ptr<const RopeTable> rope_table(int64_t positions, const std::vector<double>& frequencies) {
  struct Last {
    int64_t positions = 0;
    std::vector<double> frequencies;
    std::shared_ptr<const RopeTable> table;
  };
  static std::mutex mutex;
  static std::array<Last, 2> newest;  // a model has up to two
  const std::lock_guard lock(mutex);
  for (const Last& one : newest)
    if (one.table && one.positions == positions && one.frequencies == frequencies) return one.table;
  newest[1] = std::move(newest[0]);
  newest[0] = {positions, frequencies, std::make_shared<const RopeTable>(positions, frequencies)};
  return newest[0].table;
}

}  // namespace cleave::model
