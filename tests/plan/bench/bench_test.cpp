#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "core/error.h"
#include "plan/bench/bench_report.h"
#include "plan/bench/rounds.h"

namespace cleave::bench {
namespace {

Report report_of(std::vector<Row> rows) {
  return {.version = "1", .cpu = "a", .instructions = "b", .threads = 2, .rows = std::move(rows)};
}

Row row(const char* name, double low, double median, double high) {
  return {.name = name, .unit = "GB/s", .rate = {median, low, high}, .limit = 0, .limited_by = {}};
}

TEST(Bench, TakesTheMiddleOfTheRoundsAndTheirEnds) {
  const Rate odd = rate_of({20, 100, 50});
  EXPECT_EQ(odd.median, 50);
  EXPECT_EQ(odd.low, 20);
  EXPECT_EQ(odd.high, 100);
  EXPECT_EQ(rate_of({25, 80, 120, 40}).median, 60) << "between the two in the middle";
  EXPECT_EQ(rate_of({5}).median, 5);
}

TEST(Bench, RepeatsWorkAsOftenAsAskedAndAsLong) {
  int runs = 0;
  EXPECT_GT(fastest([&] { ++runs; }, 0), 0);
  EXPECT_EQ(runs, 2) << "the first may have found nothing ready";
  runs = 0;
  fastest([&] { ++runs; }, 0, 5);
  EXPECT_EQ(runs, 5);
  runs = 0;
  EXPECT_LT(fastest([&] { ++runs; }, 0.01), 0.01) << "one repetition, not all";
  EXPECT_GT(runs, 2);
}

void nothing(int, size_t) {}

// Machine on which every visit takes a second; visits in [from, to) run at half speed.
class SlowForAWhile {
 public:
  SlowForAWhile(int from, int to) : from_(from), to_(to) {}
  std::vector<Row> measure_rows(int rows, int rounds) {
    std::vector<Subject> subjects;
    for (int i = 0; i < rows; ++i)
      subjects.push_back({std::to_string(i), [this, i] {
                            const bool slow = from_ <= now_ && now_ < to_;
                            ++now_;
                            return Visit{.rate = slow ? rate(i) / 2 : rate(i), .unit = "GB/s"};
                          }});
    return measure(subjects, rounds, nothing);
  }
  static double rate(int row) { return 8.0 * (row + 1); }

 private:
  int from_, to_, now_ = 0;
};

TEST(Rounds, ASlowTimeOfARoundsLengthMovesNoRow) {
  const int rows = 10, rounds = 5;
  for (int begin = 0; begin <= rows * (rounds - 1); ++begin) {
    const std::vector<Row> found = SlowForAWhile(begin, begin + rows).measure_rows(rows, rounds);
    for (int i = 0; i < rows; ++i) {
      const Rate& rate = found[size_t(i)].rate;
      EXPECT_EQ(rate.median, SlowForAWhile::rate(i)) << "slow from visit " << begin;
      EXPECT_EQ(rate.low, SlowForAWhile::rate(i) / 2) << "the spread shows the slow visits";
    }
  }
}

TEST(Rounds, OneQuietRoundIsEnoughForTheFastest) {
  const int rows = 10, rounds = 5;
  const std::vector<Row> found = SlowForAWhile(0, rows * (rounds - 1)).measure_rows(rows, rounds);
  for (int i = 0; i < rows; ++i) {
    EXPECT_EQ(found[size_t(i)].rate.high, SlowForAWhile::rate(i));
    EXPECT_EQ(found[size_t(i)].rate.median, SlowForAWhile::rate(i) / 2);
  }
}

TEST(Rounds, AnnounceTheNextVisit) {
  std::string order;
  const auto subject = [&](const char* name) {
    return Subject{name, [&order, name] {
                     order += name;
                     return Visit{.rate = 1, .unit = "GB/s"};
                   }};
  };
  measure({subject("a"), subject("b")}, 3,
          [&](int round, size_t i) { order += std::to_string(round) + std::to_string(i); });
  EXPECT_EQ(order, "00a01b10a11b20a21b");
}

TEST(Rounds, ARowIsBoundedByTheFastestRoundOfTheBestOther) {
  double limit = 100;
  const auto row = [](const char* name, double rate, std::vector<Bound> bounds) {
    return Subject{name, [=] { return Visit{.rate = rate, .unit = "GFLOP/s", .bounds = bounds}; }};
  };
  const std::vector<Row> found =
      measure({row("ours", 60, {{"limit", "on registers"}, {"theirs", "their best"}, {"none", "nothing"}}),
               row("theirs", 80, {{"limit", "on registers"}}),
               row("tokens", 6, {{"limit", "arithmetic", 0.25}}),
               row("free", 1, {{"none", "nothing"}}),
               {"limit",
                [&] {
                  limit = limit == 100 ? 50 : 100;
                  return Visit{.rate = limit, .unit = "GFLOP/s"};
                }}},
              2, nothing);
  EXPECT_EQ(found[0].limit, 100);
  EXPECT_EQ(found[0].limited_by, "on registers");
  EXPECT_EQ(found[0].share(), 0.6);
  EXPECT_EQ(found[2].limit, 25);
  EXPECT_EQ(found[3].limit, 0);
  EXPECT_EQ(found[3].limited_by, "");
}

TEST(Bench, NamesRowsWithRangesBelowTheEarlierOnes) {
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
                  .starts_with("the earlier report comes from another machine: a, b, 1 threads\n"));
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
