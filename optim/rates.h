// What an optimizer is told anew for a step, by a schedule or from outside.
#pragma once

namespace cleave::optim {

struct Rates {
  double lr = 0;
  double momentum =
      -1;  // the first beta (or SGD's momentum) where a schedule moves it; negative: the optimizer's own
  double beta2 = -1;         // likewise
  double weight_decay = -1;  // of what decays; negative: the optimizer's own
  bool operator==(const Rates&) const = default;
};

}  // namespace cleave::optim
