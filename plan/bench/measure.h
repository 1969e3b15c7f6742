// How fast a piece of work is, when it is done again and again.
#pragma once
#include <functional>
#include <vector>

namespace cleave::bench {

// Of rounds: what the middle one reached, the slowest and the fastest; in units of work a second.
struct Rate {
  double median = 0, low = 0, high = 0;
};

// Of what each round reached; at least one.
Rate rate_of(std::vector<double> reached);

// Seconds of the fastest repetition. There are so many at least, and more until `least_seconds` have passed;
// the first finds cold caches and makes what others find, so one is too few for most work.
double fastest(const std::function<void()>& run, double least_seconds, size_t repeats = 2);

}  // namespace cleave::bench
