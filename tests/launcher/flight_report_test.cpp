#include "launcher/flight_report.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave::launcher {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

FlightRecord::Call call(int group, int64_t number, int64_t entered_us, int64_t finished_us,
                        int64_t count = 100) {
  return {group,      number, "all_reduce", "fp32",     "sum",      "gradients of h.3",
          "backward", count,  -1,           entered_us, finished_us};
}

// Ranks of one group, each with a finished call 11 and, if `running`, call 12.
FlightRecord record(int rank, int ranks, bool running, const std::string& reason = "lost") {
  FlightRecord r;
  r.rank = rank, r.ranks = ranks, r.pid = 100 + rank, r.host = "a", r.reason = reason;
  r.time_us = 40'000'000;
  std::vector<int> all;
  for (int i = 0; i < ranks; ++i) all.push_back(i);
  r.groups = {{"data", all, running ? 12 : 11, 11}};
  r.calls = {call(0, 11, 9'000'000, 9'500'000)};
  if (running) r.calls.push_back(call(0, 12, 10'000'000, 0));
  r.threads = {{100 + rank, "main", {}}};
  return r;
}

TEST(FlightReport, NamesTheMissingRankAndTheCallOfTheOthers) {
  const FlightReport report = flight_report({record(0, 3, true), record(1, 3, false), record(2, 3, true)});
  EXPECT_EQ(report.suspects, std::vector<int>{1});
  EXPECT_TRUE(has(report.text,
                  "rank 1 is missing: its last call in group 'data' is 11; ranks 0, 2 wait in "
                  "all_reduce of 100 fp32 (gradients of h.3), call 12 of group 'data', backward"))
      << report.text;
  EXPECT_TRUE(has(report.text, "rank 0 on a: in all_reduce of 100 fp32")) << report.text;
  EXPECT_TRUE(has(report.text, "for 30.0 s")) << report.text;
  EXPECT_TRUE(has(report.text, "rank 1, thread 101 (main, main)")) << report.text;
  EXPECT_FALSE(has(report.text, "rank 0, thread")) << report.text;
}

TEST(FlightReport, NamesBothRanksOfDifferentCalls) {
  FlightRecord other = record(1, 2, true);
  other.calls.back().count = 50;
  const FlightReport report = flight_report({record(0, 2, true), other});
  EXPECT_EQ(report.suspects, (std::vector<int>{0, 1}));
  EXPECT_TRUE(has(report.text, "ranks 0 and 1 differ: all_reduce of 100 fp32")) << report.text;
  EXPECT_TRUE(has(report.text, "all_reduce of 50 fp32")) << report.text;
}

// Rank 1 makes another call in the same group, or a call in another group: all wait for each other.
TEST(FlightReport, NamesTheRankThatLeftThePathOfTheOthers) {
  FlightRecord other = record(1, 3, true);
  other.calls.back().count = 50;
  EXPECT_EQ(flight_report({record(0, 3, true), other, record(2, 3, true)}).suspects, std::vector<int>{1});
  std::vector<FlightRecord> records = {record(0, 3, true), record(1, 3, false), record(2, 3, true)};
  for (FlightRecord& r : records) r.groups.push_back({"rounds", {0, 1, 2}, r.rank == 1 ? 5 : 4, 4});
  records[1].calls.push_back(call(1, 5, 10'000'000, 0, 6));
  EXPECT_EQ(flight_report(records).suspects, std::vector<int>{1});
}

// Ranks 0 and 1 wait in the group of all three ranks for rank 2, which waits for a message of rank 3.
TEST(FlightReport, FollowsAChainOfWaitsToItsEnd) {
  FlightRecord middle = record(2, 4, false), last = record(3, 4, false);
  const auto pair = FlightRecord::Group{"pipe", {2, 3}, 0, 0};
  middle.groups.push_back(pair), last.groups.push_back(pair);
  middle.calls.push_back({1, 4, "recv", "bf16", "sum", "activations", "forward", 8, 1, 10'000'000, 0});
  FlightRecord first = record(0, 4, true), second = record(1, 4, true);
  for (FlightRecord* r : {&first, &second, &middle, &last}) r->groups[0].ranks = {0, 1, 2};
  last.groups[0].ranks = {3};
  const FlightReport report = flight_report({first, second, middle, last});
  EXPECT_EQ(report.suspects, std::vector<int>{3}) << report.text;
  EXPECT_TRUE(has(report.text, "rank 2 waits for a message of rank 3")) << report.text;
}

TEST(FlightReport, NamesACrashedRankAndRanksWithoutARecord) {
  const FlightReport crash = flight_report({record(0, 3, true), record(1, 3, false, "SIGSEGV")});
  EXPECT_EQ(crash.suspects, std::vector<int>{1});
  EXPECT_TRUE(has(crash.text, "rank 1 ended with SIGSEGV")) << crash.text;
  EXPECT_TRUE(has(crash.text, "rank 2 wrote no record")) << crash.text;
}

TEST(FlightReport, NamesARankThatEndedByItself) {
  const FlightReport report = flight_report({record(0, 3, true), record(2, 3, true)}, {{1, 3}});
  EXPECT_EQ(report.suspects, std::vector<int>{1});
  EXPECT_TRUE(has(report.text, "rank 1 ended with exit code 3 and wrote no record\n")) << report.text;
  EXPECT_TRUE(has(report.text, "look at rank 1\n")) << report.text;
  EXPECT_FALSE(has(report.text, "not reached yet")) << report.text;
}

TEST(FlightReport, DoesNotBlameARankOfARunningJobForAShortWait) {
  FlightRecord busy = record(0, 2, true, "SIGQUIT"), next = record(1, 2, false, "SIGQUIT");
  busy.calls.back().entered_us = 39'900'000;
  EXPECT_TRUE(flight_report({busy, next}).suspects.empty());
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string file_of(int rank, const std::string& job, int64_t time_us) {
  return R"({"format":1,"rank":)" + std::to_string(rank) + R"(,"ranks":2,"job":")" + job +
         R"(","attempt":0,"host":"a","pid":7,"reason":"lost","text":"","time_us":)" +
         std::to_string(time_us) +
         R"(,"groups":[{"name":"data","ranks":[0,1],"entered":3,"finished":2}],"calls":[{"group":0,"number":3,)"
         R"("op":"barrier","type":"fp32","count":0,"by":"sum","peer":-1,"what":"","phase":"","state":"running",)"
         R"("queued_us":null,"entered_us":5,"finished_us":null}],"threads":[{"tid":7,"name":"x","frames":)"
         R"([["/none",16,4096]]}],"python":""})";
}

TEST(FlightRecords, OfTheNewestJobAreReadFromAFolder) {
  const Scratch scratch;
  write(scratch.path("rank-0.json"), file_of(0, "new", 20));
  write(scratch.path("rank-1.json"), file_of(1, "old", 10));
  const std::vector<FlightRecord> records = read_flight_records(scratch.folder().string());
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].calls.at(0).op, "barrier");
  EXPECT_TRUE(records[0].calls.at(0).running());
  EXPECT_EQ(records[0].threads.at(0).frames.at(0).offset, 16);
}

TEST(FlightRecords, ThatAreMissingOrMalformedAreNamed) {
  const Scratch scratch;
  const auto error = [&] {
    try {
      read_flight_records(scratch.folder().string());
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_TRUE(has(error(), "contains no flight records"));
  write(scratch.path("rank-0.json"), R"({"format":1,"rank":"zero"})");
  EXPECT_TRUE(has(error(), "rank-0.json: malformed flight record")) << error();
  write(scratch.path("rank-0.json"), "{");
  EXPECT_TRUE(has(error(), "rank-0.json:1:")) << error();
}

}  // namespace
}  // namespace cleave::launcher
