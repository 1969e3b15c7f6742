#include "app/run/kept_checkpoints.h"

#include <algorithm>

namespace cleave::app {

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

int64_t most_checkpoints(int64_t steps, int64_t interval, KeepRule rule) {
  if (rule.newest == 0) return interval > 0 ? (steps + interval - 1) / interval : 1;
  constexpr int64_t kSaves = 10'000;  // more saves than that are practically never reached
  std::vector<int64_t> there;
  int64_t most = 1;
  for (int64_t save = 1; save <= kSaves; ++save) {
    const int64_t step = interval > 0 ? std::min(save * interval, steps) : steps;
    there.push_back(step);
    most = std::max(most, int64_t(there.size()));
    for (const int64_t gone : steps_to_let_go(there, step, -1, rule)) std::erase(there, gone);
    if (step >= steps) break;
  }
  return most;
}

}  // namespace cleave::app
