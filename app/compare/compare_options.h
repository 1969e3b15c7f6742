#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "app/arguments.h"

namespace cleave::app {

// Options of `cleave compare`.
struct CompareOptions {
  std::vector<std::string> configs;  // two ds_configs; empty: a script
  std::vector<int> ranks{1};
  int64_t steps = 3, seed = 42;
  std::string against = "torch", keep;
  bool json = false;
  Arguments command;  // after --

  int ranks_of(size_t run) const { return ranks[std::min(run, ranks.size() - 1)]; }
};

// Trains the same model on the same data with both ds_configs and compares losses, gradients and updates.
// `command`: options of `cleave train`. Returns Exit::different if they differ.
int compare_configs(CompareOptions options);

// Becomes the package's comparison of a PyTorch script.
[[noreturn]] void compare_script(const CompareOptions& options);

}  // namespace cleave::app
