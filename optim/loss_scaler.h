// The scale of the loss in fp16 training: a small state machine that only sees whether a step's gradients
// were finite. It tolerates `hysteresis` overflows and ends the training at the minimum; the plain rule does
// neither, as DeepSpeed at ZeRO stage 0. Whoever unscales a step's gradients takes the scale from before
// update().
#pragma once
#include <cstdint>

#include "config_schema/ds_config.h"

namespace cleave::optim {

class LossScaler {
 public:
  // Everything that changes; a checkpoint stores it.
  struct State {
    double scale = 1;
    int64_t iteration = 0;
    int64_t last_overflow = -1;
    int64_t hysteresis = 1;
    bool operator==(const State&) const = default;
  };

  enum class Update { ok, at_minimum };  // at_minimum: overflow at the lowest scale, training cannot go on

  // A scale of 1 that never changes: every type but fp16.
  LossScaler() = default;
  explicit LossScaler(const config::Fp16Config& fp16, bool plain = false);
  // Of parameters in fp32 whose passes run in fp16, as autocast has them: what torch.amp.GradScaler does,
  // from 2^16 on, halved by each overflow and doubled behind 2000 steps without one.
  static LossScaler of_fp32();

  double scale() const { return state_.scale; }

  // After the gradients of a step are complete. On at_minimum nothing has changed.
  [[nodiscard]] Update update(bool overflow);

  const State& state() const { return state_; }
  // A hysteresis of 0 is as it is at the start.
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
