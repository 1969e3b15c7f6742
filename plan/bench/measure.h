// Measures the speed of repeated work.
#pragma once
#include <functional>
#include <vector>

namespace cleave::bench {

// Rates over rounds: median, slowest and fastest, in units of work per second.
struct Rate {
  double median = 0, low = 0, high = 0;
};

// Returns the rates of at least one round.
Rate rate_of(std::vector<double> reached);

// Returns the seconds of the fastest repetition. Runs at least `repeats` times, and until `least_seconds`
// have passed. The first run has cold caches and fills caches for the next ones, so one is too few for most
// work.
double fastest(const std::function<void()>& run, double least_seconds, size_t repeats = 2);

}  // namespace cleave::bench
