// Layer that counts.
#pragma once
#include <algorithm>
#include <bit>

#include "model/layer.h"
#include "tests/runtime/identity.h"

namespace cleave::testing {

// Identity layer. Records the number of rows of each of three kinds so far, and the largest key of a row;
// keys are at most -2^60, and neither float nor double represents them.
class Count final : public Identity {
 public:
  static constexpr int64_t kKinds = 3, kBegin = (int64_t{1} << 53) - 1;
  static int64_t kind_of(float x) { return x < -0.2f ? 0 : x < 0.2f ? 1 : 2; }
  static int64_t key_of(float x) { return -(int64_t{1} << 60) - int64_t(std::bit_cast<uint32_t>(x)); }

  explicit Count(std::string name) : name_(std::move(name)) {}

  std::vector<model::LayerState> states() const override {
    return {{.name = name_ + ".rows", .shape = {kKinds}, .dtype = DType::int64, .begin = double(kBegin)},
            {.name = name_ + ".key",
             .shape = {1},
             .dtype = DType::int64,
             .by = Reduction::max,
             .begin = -0x1p53 / 4}};
  }

  void forward(const model::ForwardArgs& a) const override {
    Identity::forward(a);
    if (!a.states[0].seen.defined()) return;
    a.stream.enqueue([x = a.x, rows = a.states[0].seen, key = a.states[1].seen] {
      for (int64_t r = 0; r < x.dim(0); ++r) {
        const float first = x.as<float>()[r * x.dim(1)];
        rows.as<int64_t>()[kind_of(first)] += 1;
        *key.as<int64_t>() = std::max(*key.as<int64_t>(), key_of(first));
      }
    });
  }
  // Uses the key of the last step.
  void join(std::span<const model::StateViews> states, Stream& stream) const override {
    stream.enqueue([rows = states[0], key = states[1]] {
      for (int64_t k = 0; k < kKinds; ++k) rows.lasting.as<int64_t>()[k] += rows.seen.as<int64_t>()[k];
      *key.lasting.as<int64_t>() = *key.seen.as<int64_t>();
    });
  }

 private:
  std::string name_;
};

}  // namespace cleave::testing
