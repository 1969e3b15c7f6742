#include "plan/bench/rounds.h"

#include <algorithm>

namespace cleave::bench {

std::vector<Row> measure(const std::vector<Subject>& subjects, int rounds,
                         const std::function<void(int round, size_t subject)>& before) {
  std::vector<std::vector<double>> reached(subjects.size());
  std::vector<Visit> last(subjects.size());
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < subjects.size(); ++i) {
      before(round, i);
      last[i] = subjects[i].visit();
      reached[i].push_back(last[i].rate);
    }
  std::vector<Row> rows;
  for (size_t i = 0; i < subjects.size(); ++i)
    rows.push_back({.name = subjects[i].name, .unit = last[i].unit, .rate = rate_of(reached[i])});
  for (size_t i = 0; i < rows.size(); ++i)
    for (const Bound& bound : last[i].bounds) {
      const auto other = std::ranges::find(rows, bound.row, &Row::name);
      if (other == rows.end() || bound.times * other->rate.high <= rows[i].limit) continue;
      rows[i].limit = bound.times * other->rate.high, rows[i].limited_by = bound.words;
    }
  return rows;
}

}  // namespace cleave::bench
