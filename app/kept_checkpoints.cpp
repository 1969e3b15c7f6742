#include "app/kept_checkpoints.h"

#include <algorithm>

namespace cleave {

std::vector<int64_t> steps_to_let_go(std::vector<int64_t> steps, int64_t saved, int64_t best, KeepRule rule) {
  if (rule.newest == 0) return {};
  std::erase_if(steps, [&](int64_t step) { return step > saved; });
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  steps.resize(steps.size() - std::min(steps.size(), size_t(rule.newest)));
  std::erase_if(steps,
                [&](int64_t step) { return step == best || (rule.every > 0 && step % rule.every == 0); });
  return steps;
}

}  // namespace cleave
