// Combines unscaling and clipping in one factor, like DeepSpeed.
#pragma once
#include <algorithm>

namespace cleave::optim {

// Factor for all gradients, given their unscaled global L2 norm `norm` and its maximum `clipping` (0: no
// limit). The small constant keeps the result strictly below the limit.
inline double gradient_factor(double loss_scale, double norm, double clipping) {
  constexpr double kGuard = 1e-6;
  const double excess = clipping > 0 ? std::max(1.0, (norm + kGuard) / clipping) : 1.0;
  return 1.0 / (excess * loss_scale);
}

}  // namespace cleave::optim
