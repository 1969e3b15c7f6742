#include "monitor/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/scratch.h"

namespace cleave::monitor {
namespace {

std::string hex(std::string_view bytes) {
  std::string out;
  for (char c : bytes) out += fmt::format("{:02x}", uint8_t(c));
  return out;
}

// Computed with Python's standard library from the definition of the format.
constexpr std::string_view kVersionRecord =
    "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d";
constexpr std::string_view kScalarRecord =
    "200000000000000029eda9500900004040fc54d94110072a130a110a0a547261696e2f6c6f7373150000003f3fd74fe6";

TEST(TensorBoard, WritesTheGoldenBytes) {
  const Scratch scratch;
  double now = 1700000000.0;
  TensorBoard board(scratch.path("runs"), {.now = [&] { return now; }, .host = "h", .pid = 12});
  EXPECT_EQ(board.path(), scratch.path("runs/events.out.tfevents.1700000000.h.12.0"));
  now += 1;
  board.scalar("Train/loss", 0.5, 7);
  EXPECT_EQ(hex(scratch.read("runs/events.out.tfevents.1700000000.h.12.0")),
            std::string(kVersionRecord).append(kScalarRecord));
}

TEST(TensorBoard, HasTheCheckValueOfCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);  // RFC 3720, B.4
}

// Reads the records and returns the bytes of the events; an invalid frame fails the test.
std::vector<std::string> events_of(const std::string& file) {
  std::vector<std::string> events;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    uint32_t crc[2] = {};
    std::memcpy(&length, &file[at], 8);
    std::memcpy(&crc[0], &file[at + 8], 4);
    events.push_back(file.substr(at + 12, length));
    std::memcpy(&crc[1], &file[at + 12 + length], 4);
    auto unmasked = [](uint32_t masked) {
      return (masked - 0xA282EAD8u) << 15 | (masked - 0xA282EAD8u) >> 17;
    };
    EXPECT_EQ(unmasked(crc[0]), crc32c(std::string_view(file).substr(at, 8)));
    EXPECT_EQ(unmasked(crc[1]), crc32c(events.back()));
    at += 16 + length;
  }
  return events;
}

TEST(TensorBoard, StepsOfAnySizeAndLongTagsAreFramed) {
  const Scratch scratch;
  TensorBoard board(scratch.path("."), {.now = [] { return 1700000000.0; }, .host = "h", .pid = 1});
  board.scalar("a", 1, 0);
  board.scalar("a", 1, 300);
  board.scalar("a", 1, int64_t{1} << 40);
  board.scalar(std::string(300, 't'), std::nan(""), 1);
  const auto events = events_of(scratch.read("events.out.tfevents.1700000000.h.1.0"));
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(hex(events[1].substr(9, 1)), "2a");      // step 0 is omitted: the summary follows the time
  EXPECT_EQ(hex(events[2].substr(9, 3)), "10ac02");  // 300 = 0b10'0101100
  EXPECT_EQ(hex(events[3].substr(9, 7)), "10808080808020");  // 2^40 = bit 5 of the sixth group of seven
  EXPECT_EQ(events[4].find(std::string(300, 't')),
            11u + 3 + 3 + 3);  // three nested lengths of two bytes each
}

TEST(TensorBoard, EveryRecordIsWrittenAtOnce) {
  const Scratch scratch;
  TensorBoard board(scratch.path("."));
  board.scalar("a", 1, 1);
  EXPECT_EQ(events_of(scratch.read(std::filesystem::path(board.path()).filename())).size(), 2u);
}

TEST(TensorBoard, ASecondFileOfTheSameSecondHasTheNextNumber) {
  const Scratch scratch;
  const TensorBoardOptions options{.now = [] { return 5.0; }, .host = "h", .pid = 1};
  const TensorBoard first(scratch.path("."), options), second(scratch.path("."), options);
  EXPECT_TRUE(first.path().ends_with("events.out.tfevents.0000000005.h.1.0"));
  EXPECT_TRUE(second.path().ends_with("events.out.tfevents.0000000005.h.1.1"));
}

TEST(TensorBoard, NamesTheFolderThatCannotBeUsed) {
  const Scratch scratch;
  const auto folder = scratch.write("file", "x") + "/runs";
  expect_error(Exit::usage, {folder, "Not a directory"}, [&] { TensorBoard{folder}; });
}

}  // namespace
}  // namespace cleave::monitor
