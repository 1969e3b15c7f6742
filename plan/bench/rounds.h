// The one way in which rows are measured: all of them in turn, several rounds over. A machine that has other
// work at times, or whose host has, is slow for seconds to minutes; measured at once, a row would be of such
// a time or not. So each row is visited at times that lie far apart, and a slow time that covers few rounds
// is in the spread of many rows, and in the value of none.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/bench/report.h"

namespace cleave::bench {

// What a row can reach at most: so many times the fastest round of another row.
struct Bound {
  std::string row, words;
  double times = 1;
};

// One round of a row: the fastest of a few repetitions.
struct Visit {
  double rate;  // in the unit
  std::string unit;
  std::vector<Bound> bounds = {};  // the largest counts; rows that are not measured do not
};

// What will be a row. What its visit needs, such as operands, it makes and frees again, so that the most that
// is in memory at a time does not depend on the number of rows.
struct Subject {
  std::string name;
  std::function<Visit()> visit;
};

// Rows in the order of their subjects; `before` is called ahead of each visit. At least one round.
std::vector<Row> measure(const std::vector<Subject>& subjects, int rounds,
                         const std::function<void(int round, size_t subject)>& before);

}  // namespace cleave::bench
