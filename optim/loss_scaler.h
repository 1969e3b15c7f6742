// Loss scale of fp16 training: a small state machine driven by gradient overflows. It tolerates `hysteresis`
// overflows and stops the training at the minimum; the plain rule does neither, like DeepSpeed at ZeRO stage
// 0. Unscale the gradients of a step with the scale from before update().
#pragma once
#include <cstdint>

#include "config_schema/ds_config.h"

namespace cleave::optim {

class LossScaler {
 public:
  // The mutable state, stored in checkpoints.
  struct State {
    double scale = 1;
    int64_t iteration = 0;
    int64_t last_overflow = -1;
    int64_t hysteresis = 1;
    bool operator==(const State&) const = default;
  };

  enum class Update { ok, at_minimum };  // at_minimum: overflow at the lowest scale, training cannot continue

  // Constant scale 1: for all types except fp16.
  LossScaler() = default;
  explicit LossScaler(const config::Fp16Config& fp16, bool plain = false);
  // For fp32 parameters with fp16 passes (autocast): like torch.amp.GradScaler, starts at 2^16, halves at
  // each overflow and doubles after 2000 steps without one.
  static LossScaler of_fp32();

  double scale() const { return state_.scale; }

  // Call after the gradients of a step are complete. at_minimum leaves the state unchanged.
  [[nodiscard]] Update update(bool overflow);

  const State& state() const { return state_; }
  // A hysteresis of 0 resets it to its initial value.
  void restore(const State& state) {
    state_ = state;
    if (state.hysteresis <= 0) state_.hysteresis = hysteresis_;
  }

 private:
  State state_;
  bool dynamic_ = false, plain_ = false, consecutive_hysteresis_ = false;
  int64_t window_ = 1000, hysteresis_ = 1;
  double minimum_ = 1;
};

}  // namespace cleave::optim
