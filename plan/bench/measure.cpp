#include "plan/bench/measure.h"

#include <algorithm>
#include <chrono>

namespace cleave::bench {

Rate rate_of(std::vector<double> reached) {
  std::ranges::sort(reached);
  const size_t n = reached.size();
  return {
      .median = (reached[(n - 1) / 2] + reached[n / 2]) / 2, .low = reached.front(), .high = reached.back()};
}

double fastest(const std::function<void()>& run, double least_seconds, size_t repeats) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30, spent = 0;
  for (size_t done = 0; done < repeats || spent < least_seconds; ++done) {
    const auto begin = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, seconds), spent += seconds;
  }
  return best;
}

}  // namespace cleave::bench
