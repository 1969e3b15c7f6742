// Parameters whose rates change together.
#pragma once
#include <span>
#include <vector>

#include "optim/rates.h"

namespace cleave::optim {

// A script's groups of parameters, of which those with the same rates are one here, where weight decay may
// leave some of them out: so a layer's weights and biases stay together, although scripts give them groups of
// their own for the decay's sake.
class RateGroups {
 public:
  explicit RateGroups(std::span<const Rates> began);

  const std::vector<int>& of_group() const {
    return of_group_;
  }  // the number of each of the script's, from 0
  // By number, what the script's groups say now. Error(usage) where those that began as one are so no more,
  // or one begins to decay.
  std::vector<Rates> merged(std::span<const Rates> now) const;

 private:
  std::vector<Rates> began_;
  std::vector<int> of_group_;
  int count_ = 0;
};

}  // namespace cleave::optim
