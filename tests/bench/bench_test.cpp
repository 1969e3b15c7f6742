#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "bench/report.h"
#include "core/error.h"

namespace cleave::bench {
namespace {

Report report_of(std::vector<Row> rows) {
  return {.version = "1", .cpu = "a", .instructions = "b", .threads = 2, .rows = std::move(rows)};
}

Row row(const char* name, double low, double median, double high) {
  return {.name = name, .unit = "GB/s", .rate = {median, low, high}, .limit = 0, .limited_by = {}};
}

TEST(Bench, TakesTheMiddleOfTheRepetitionsAndTheirEnds) {
  const Rate odd = rate_of({0.5, 0.1, 0.2}, 10);
  EXPECT_EQ(odd.median, 50);
  EXPECT_EQ(odd.low, 20);
  EXPECT_EQ(odd.high, 100);
  EXPECT_EQ(rate_of({0.4, 0.1, 0.1, 0.3}, 10).median, 50) << "between the two in the middle";
  EXPECT_EQ(rate_of({2}, 10).median, 5);
}

TEST(Bench, RepeatsWorkAsOftenAsAskedAndAsLong) {
  int runs = 0;
  const Rate rate = measure([&] { ++runs; }, 1, 0, 3);
  EXPECT_EQ(runs, 4) << "one of them without a look";
  EXPECT_LE(rate.low, rate.median);
  EXPECT_LE(rate.median, rate.high);
  runs = 0;
  measure([&] { ++runs; }, 1, 0.01, 3);
  EXPECT_GT(runs, 4);
}

TEST(Bench, NamesRowsWhoseRangesLieBelowTheEarlierOnes) {
  const Report was =
      report_of({row("same", 9, 10, 11), row("slower", 9, 10, 11), row("a little", 9.9, 10, 10.1),
                 row("gone", 1, 2, 3), row("overlaps", 9, 10, 11)});
  const Report now =
      report_of({row("same", 9, 10, 11), row("slower", 5, 6, 8), row("a little", 9.8, 9.85, 9.89),
                 row("new", 1, 1, 1), row("overlaps", 5, 6, 9.5)});
  const std::vector<Change> found = slower(was, now);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "slower");
  EXPECT_EQ(found[0].was, 10);
  EXPECT_EQ(found[0].now, 6);
  EXPECT_EQ(format_comparison(was, now),
            "slower: slower                               6.00 GB/s, was 10.0 (0.60 x)\n"
            "1 of 4 rows are slower than in the earlier report");
  Report other = was;
  other.threads = 1;
  EXPECT_TRUE(format_comparison(other, now)
                  .starts_with("the earlier report is of another machine: a, b, 1 threads\n"));
}

TEST(Bench, ReadsTheReportsThatItWrites) {
  const std::string file = testing::TempDir() + "bench_report.json";
  Report was = report_of({row("a", 1, 2, 3)});
  was.rows[0].limit = 4, was.rows[0].limited_by = "a limit";
  std::ofstream(file) << to_json(was);
  const Report read = read_report(file);
  EXPECT_EQ(to_json(read), to_json(was));
  EXPECT_EQ(read.rows[0].share(), 0.5);
  for (const char* wrong : {"{", "[]", "{\"rows\": []}"}) {
    std::ofstream(file) << wrong;
    EXPECT_THROW(read_report(file), Error) << wrong;
  }
  std::remove(file.c_str());
  EXPECT_THROW(read_report(file), Error);
}

}  // namespace
}  // namespace cleave::bench
