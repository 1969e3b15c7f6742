// Measures rows in turns over several rounds. A machine with other load, or with a loaded host, is slow for
// seconds to minutes, and a row measured at once would be affected completely or not at all. Visits of each
// row at distant times put a slow period that covers few rounds into the spread of many rows, and into the
// value of none.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/bench/bench_report.h"

namespace cleave::bench {

// Limit of a row: a multiple of the fastest round of another row.
struct Bound {
  std::string row, words;
  double times = 1;
};

// One round of a row: the fastest of a few repetitions.
struct Visit {
  double rate;  // in `unit`
  std::string unit;
  std::vector<Bound> bounds = {};  // the largest applies; rows that are not measured are ignored
};

// Row to measure. Its visit makes and frees its resources, such as operands, so that peak memory does not
// depend on the number of rows.
struct Subject {
  std::string name;
  std::function<Visit()> visit;
};

// Returns the rows in the order of their subjects; calls `before` before each visit. At least one round.
std::vector<Row> measure(const std::vector<Subject>& subjects, int rounds,
                         const std::function<void(int round, size_t subject)>& before);

}  // namespace cleave::bench
