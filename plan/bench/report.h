// What a machine reaches and what it reaches at most, as a table, as JSON, and beside an earlier report.
#pragma once
#include <string>
#include <vector>

#include "plan/bench/measure.h"

namespace cleave::bench {

struct Row {
  std::string name;             // "matmul/qkv/forward/bf16"
  std::string unit;             // "GFLOP/s", "GB/s", "tokens/s", "calls/s"
  Rate rate;                    // in it
  double limit = 0;             // the most that there is, in it; 0: not known
  std::string limited_by = {};  // what reached that

  double share() const { return limit > 0 ? rate.median / limit : 0; }
};

struct Report {
  std::string version, cpu, instructions;  // Cleave's; as the kernel names it; what its products use
  int threads = 1;
  std::vector<Row> rows;
};

// A line each, for people, in columns that fit together.
std::string format_head();
std::string format(const Row& row);

std::string to_json(const Report& report);
// Error(usage), with the file's name, where it is no such JSON or cannot be read.
Report read_report(const std::string& file);
// Whether it is JSON with rows, whatever else is wrong with it.
bool holds_report(const std::string& file);
// Null where the report has no row of this name.
const Row* row_of(const Report& report, const std::string& name);

struct Change {
  std::string name, unit;
  double was = 0, now = 0;
};
// Rows that got slower: of both reports, not one round now being as fast as the slowest was then, and by
// three percent of the median at least.
std::vector<Change> slower(const Report& was, const Report& now);

// For people: what got slower and how many rows were compared; where machine or threads differ, that first.
std::string format_comparison(const Report& was, const Report& now);

}  // namespace cleave::bench
