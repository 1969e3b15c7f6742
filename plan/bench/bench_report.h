// Measured rates and limits of a machine as a table, as JSON, and compared with an earlier report.
#pragma once
#include <string>
#include <vector>

#include "plan/bench/measure.h"

namespace cleave::bench {

struct Row {
  std::string name;             // example: "matmul/qkv/forward/bf16"
  std::string unit;             // "GFLOP/s", "GB/s", "tokens/s", "calls/s"
  Rate rate;                    // in `unit`
  double limit = 0;             // maximum, in `unit`; 0: unknown
  std::string limited_by = {};  // source of the limit

  double share() const { return limit > 0 ? rate.median / limit : 0; }
};

struct Report {
  std::string version, cpu, instructions;  // of Cleave; as the kernel names it; of the products
  int threads = 1;
  std::vector<Row> rows;
};

// One line each for users, with aligned columns.
std::string format_head();
std::string format(const Row& row);

std::string to_json(const Report& report);
// Throws Error(usage) with the file's name if it is unreadable or not such JSON.
Report read_report(const std::string& file);
// Returns true for any JSON with rows, even if invalid otherwise.
bool holds_report(const std::string& file);
// Returns null if the report has no row with this name.
const Row* row_of(const Report& report, const std::string& name);

struct Change {
  std::string name, unit;
  double was = 0, now = 0;
};
// Returns the rows of both reports that became slower: every round is slower than all rounds before, and the
// median dropped by at least three percent.
std::vector<Change> slower(const Report& was, const Report& now);

// Returns a text for users: the slower rows and the number of compared rows; first, a note if machine or
// threads differ.
std::string format_comparison(const Report& was, const Report& now);

}  // namespace cleave::bench
