#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace cleave::optim {

LossScaler::LossScaler(const config::Fp16Config& fp16, bool plain)
    : dynamic_(fp16.enabled && fp16.loss_scale == 0),
      plain_(plain),
      consecutive_hysteresis_(fp16.consecutive_hysteresis),
      window_(fp16.loss_scale_window),
      hysteresis_(fp16.hysteresis),
      minimum_(fp16.min_loss_scale) {
  require(window_ > 0, Exit::usage, "fp16.loss_scale_window: must be at least 1 (got {})", window_);
  if (fp16.enabled) state_.scale = dynamic_ ? std::ldexp(1.0, fp16.initial_scale_power) : fp16.loss_scale;
  state_.hysteresis = hysteresis_;
}

LossScaler LossScaler::of_fp32() {
  config::Fp16Config fp16;
  fp16.enabled = true, fp16.loss_scale = 0;
  fp16.initial_scale_power = 16, fp16.loss_scale_window = 1999;  // the scale grows one step after its window
  fp16.hysteresis = 1, fp16.min_loss_scale = std::numeric_limits<double>::min();
  return LossScaler(fp16, true);
}

LossScaler::Update LossScaler::update(bool overflow) {
  if (!dynamic_) return Update::ok;
  State& s = state_;
  if (overflow) {
    const bool patient = !plain_ && hysteresis_ != 1 && s.hysteresis != 1;
    if (!patient && !plain_ && s.scale == minimum_) return Update::at_minimum;
    if (patient) {
      --s.hysteresis;
    } else {
      s.scale = std::max(s.scale / 2, minimum_);
    }
    s.last_overflow = s.iteration;
  } else {
    if (consecutive_hysteresis_) s.hysteresis = hysteresis_;
    const int64_t stable = s.iteration - s.last_overflow - 1;
    if (stable > 0 && stable % window_ == 0) {
      s.hysteresis = hysteresis_;
      s.scale *= 2;
    }
  }
  ++s.iteration;
  return Update::ok;
}

}  // namespace cleave::optim
