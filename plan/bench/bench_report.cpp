#include "plan/bench/bench_report.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace cleave::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string three_digits(double x) { return fmt::format("{:.{}f}", x, x < 10 ? 2 : x < 100 ? 1 : 0); }

Row row_from(const Json& j) {
  Row row{.name = j.at("name"),
          .unit = j.at("unit"),
          .rate = {.median = j.at("median"), .low = j.at("low"), .high = j.at("high")}};
  if (j.contains("limit")) row.limit = j.at("limit"), row.limited_by = j.at("limited_by");
  return row;
}

}  // namespace

const Row* row_of(const Report& report, const std::string& name) {
  for (const Row& row : report.rows)
    if (row.name == name) return &row;
  return nullptr;
}

bool holds_report(const std::string& file) {
  std::ifstream in(file);
  const Json all = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  return all.is_object() && all.contains("rows");
}

std::string format_head() {
  return fmt::format("{:<36} {:>8}  {:<9} {:>15} {:>7}  {}", "", "median", "", "slowest-fastest", "share",
                     "of");
}

std::string format(const Row& row) {
  const std::string spread = three_digits(row.rate.low) + "-" + three_digits(row.rate.high);
  std::string line =
      fmt::format("{:<36} {:>8}  {:<9} {:>15}", row.name, three_digits(row.rate.median), row.unit, spread);
  if (row.limit > 0)
    line += fmt::format(" {:>6.1f}%  {} {}", 100 * row.share(), three_digits(row.limit), row.limited_by);
  return line;
}

std::string to_json(const Report& report) {
  Json rows = Json::array();
  for (const Row& row : report.rows) {
    Json j{{"name", row.name},
           {"unit", row.unit},
           {"median", row.rate.median},
           {"low", row.rate.low},
           {"high", row.rate.high}};
    if (row.limit > 0) j["limit"] = row.limit, j["limited_by"] = row.limited_by, j["share"] = row.share();
    rows.push_back(j);
  }
  const Json all{{"version", report.version},
                 {"cpu", report.cpu},
                 {"instructions", report.instructions},
                 {"threads", report.threads},
                 {"rows", rows}};
  return all.dump(2);
}

Report read_report(const std::string& file) {
  std::ifstream in(file);
  require(bool(in), Exit::usage, "{}: cannot be read; name a file written by `cleave bench --json`", file);
  try {
    const Json all = Json::parse(in);
    Report report{.version = all.at("version"),
                  .cpu = all.at("cpu"),
                  .instructions = all.at("instructions"),
                  .threads = all.at("threads"),
                  .rows = {}};
    for (const Json& j : all.at("rows")) report.rows.push_back(row_from(j));
    return report;
  } catch (const Json::exception&) {
    fail(Exit::usage, "{}: not a report; name a file written by `cleave bench --json`", file);
  }
}

std::vector<Change> slower(const Report& was, const Report& now) {
  constexpr double kLeast = 0.97;
  std::vector<Change> found;
  for (const Row& row : now.rows)
    if (const Row* before = row_of(was, row.name);
        before && row.rate.high < before->rate.low && row.rate.median < kLeast * before->rate.median)
      found.push_back({row.name, row.unit, before->rate.median, row.rate.median});
  return found;
}

std::string format_comparison(const Report& was, const Report& now) {
  std::string out;
  if (was.cpu != now.cpu || was.instructions != now.instructions || was.threads != now.threads)
    out += fmt::format("the earlier report comes from another machine: {}, {}, {} threads\n", was.cpu,
                       was.instructions, was.threads);
  int compared = 0;
  for (const Row& row : now.rows) compared += row_of(was, row.name) != nullptr;
  const std::vector<Change> found = slower(was, now);
  for (const Change& c : found)
    out += fmt::format("slower: {:<36} {} {}, was {} ({:.2f} x)\n", c.name, three_digits(c.now), c.unit,
                       three_digits(c.was), c.now / c.was);
  return out + fmt::format("{} of {} rows are slower than in the earlier report", found.size(), compared);
}

}  // namespace cleave::bench
