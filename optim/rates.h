// Optimizer parameters that may change per step, set by a schedule or by the caller.
#pragma once

namespace cleave::optim {

struct Rates {
  double lr = 0;
  double momentum =
      -1;  // first beta (or SGD's momentum) if a schedule changes it; negative: the optimizer's value
  double beta2 = -1;         // second beta, likewise
  double weight_decay = -1;  // for decaying parameters; negative: the optimizer's value
  bool operator==(const Rates&) const = default;
};

}  // namespace cleave::optim
