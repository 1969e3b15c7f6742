// How fast a piece of work is, when it is done again and again.
#pragma once
#include <functional>
#include <vector>

namespace cleave::bench {

// Of repetitions: the middle one, and the slowest and the fastest; in units of work a second.
struct Rate {
  double median = 0, low = 0, high = 0;
};

// Of repetitions that took these seconds, each for so many units; at least one.
Rate rate_of(std::vector<double> seconds, double units);

// Runs it once without a look, then this many times and on until `least_seconds` have passed.
Rate measure(const std::function<void()>& run, double units, double least_seconds, size_t repeats = 5);

}  // namespace cleave::bench
