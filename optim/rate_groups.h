// Groups of parameters that share their rates.
#pragma once
#include <span>
#include <vector>

#include "optim/rates.h"

namespace cleave::optim {

// Merges a script's parameter groups with the same rates. Groups without weight decay merge with groups that
// have it, because scripts often split a layer's weights and biases by decay; so a layer stays in one group.
class RateGroups {
 public:
  explicit RateGroups(std::span<const Rates> began);

  const std::vector<int>& of_group() const { return of_group_; }  // merged index of each script group, from 0
  // Returns the current rates per merged group. Throws Error(usage) if merged groups no longer agree, or if a
  // group starts to decay.
  std::vector<Rates> merged(std::span<const Rates> now) const;

 private:
  std::vector<Rates> began_;
  std::vector<int> of_group_;
  int count_ = 0;
};

}  // namespace cleave::optim
