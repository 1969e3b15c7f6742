#include "bench/measure.h"

#include <algorithm>
#include <chrono>

namespace cleave::bench {

Rate rate_of(std::vector<double> seconds, double units) {
  std::ranges::sort(seconds);
  const size_t n = seconds.size();
  const double middle = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
  return {.median = units / middle, .low = units / seconds.back(), .high = units / seconds.front()};
}

Rate measure(const std::function<void()>& run, double units, double least_seconds, size_t repeats) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> seconds;
  for (double spent = 0; seconds.size() < repeats || spent < least_seconds; spent += seconds.back()) {
    const auto begin = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return rate_of(std::move(seconds), units);
}

}  // namespace cleave::bench
