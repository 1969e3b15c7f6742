#include "pipeline/schedule_file.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/scratch.h"

namespace cleave::pipeline {
namespace {

std::string refusal(const std::string& text) {
  return error_text(Exit::usage, [&] { schedule_from_json(text, "s.json"); });
}

TEST(ScheduleFile, RoundTripsEverySchedule) {
  for (const std::string& name : schedule_names())
    for (int stages : {1, 2, 3, 5})
      for (int micros : {1, 4, 7}) {
        const Schedule s = make_schedule(name, {stages, micros, name == "interleaved" && stages > 1 ? 3 : 1});
        EXPECT_EQ(schedule_from_json(schedule_to_json(s), "s.json"), s) << name;
      }
}

TEST(ScheduleFile, ReportsErrors) {
  EXPECT_EQ(refusal("{"), "s.json:1:2: it is not JSON: unexpected end of input; expected string literal");
  EXPECT_EQ(refusal(R"({"stages": 1, "micro_batches": 0, "ranks": [""]})"),
            "s.json: \"micro_batches\" must be an integer from 1 to 1000000");
  EXPECT_EQ(refusal(R"({"stages": 2, "micro_batches": 1, "ranks": ["F0 B0"]})"),
            "s.json: \"ranks\" must be a list of 2 strings, one per stage");
  EXPECT_EQ(refusal(R"({"stages": 1, "micro_batches": 1, "rank": ["F0 B0"]})"),
            "s.json: unknown key \"rank\"; a schedule has stages, micro_batches, virtual_stages and ranks");
  for (const char* word : {"F", "X0", "F0.", "F-1", "F0x", "F0.1x", "FF", "0"})
    EXPECT_NE(refusal(fmt::format(R"({{"stages": 1, "micro_batches": 1, "ranks": ["F0 B0 {}"]}})", word))
                  .find("is not a computation"),
              std::string::npos)
        << word;
  EXPECT_EQ(
      refusal(R"({"stages": 2, "micro_batches": 1, "ranks": ["F0 B0", "B0 F0"]})"),
      "s.json: the schedule cannot run: rank 1: backward of micro-batch 0, chunk 0: before its forward");
  EXPECT_NE(refusal(R"({"stages": 1, "micro_batches": 2, "ranks": ["F0 B0"]})").find("incomplete"),
            std::string::npos);
  EXPECT_EQ(
      refusal(R"({"stages": 1, "micro_batches": 1000000, "virtual_stages": 1000000, "ranks": ["F0 B0"]})"),
      "s.json: \"ranks\" is too short (got 86 bytes, expected the forwards of 1000000 micro-batches in "
      "1000000 "
      "chunks)");
  EXPECT_NE(refusal(R"({"stages": 1, "micro_batches": 1, "ranks": [7]})").find("must be a string"),
            std::string::npos);
}

}  // namespace
}  // namespace cleave::pipeline
