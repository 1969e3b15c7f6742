// Matching logs, and every kind of mismatch.
#include "plan/match_calls.h"

#include <gtest/gtest.h>

namespace cleave::plan {
namespace {

const comm::Post kSum{comm::Collective::all_reduce, DType::fp32, -1, 8},
    kOther{comm::Collective::all_reduce, DType::fp32, -1, 9};
comm::Post send(int to, int64_t numel = 4) { return {comm::Collective::send, DType::bf16, to, numel}; }
comm::Post recv(int from, int64_t numel = 4) { return {comm::Collective::recv, DType::bf16, from, numel}; }

comm::PlannedGroup world(int rank, int size) { return {"world", rank, size}; }

TEST(MatchCalls, RanksThatMakeTheSameCallsInTheSameOrderFit) {
  CallLog log(3);
  for (int r = 0; r < 3; ++r) log.add(r, world(r, 3), kSum), log.add(r, world(r, 3), kOther);
  EXPECT_EQ(log.fault(), "");
  EXPECT_EQ(log.calls(), 6);
}

TEST(MatchCalls, ASendDoesNotWaitAndItsReceiverDoes) {
  CallLog log(2);
  log.add(0, world(0, 2), send(1)), log.add(0, world(0, 2), recv(1));
  log.add(1, world(1, 2), send(0)), log.add(1, world(1, 2), recv(0));
  EXPECT_EQ(log.fault(), "");
}

TEST(MatchCalls, AnotherSizeIsNamedWithBothRanks) {
  CallLog log(2);
  log.add(0, world(0, 2), kSum), log.add(1, world(1, 2), kOther);
  EXPECT_EQ(log.fault(),
            "in group 'world' rank 0 calls all_reduce of 8 fp32 while rank 1 calls all_reduce of 9 fp32");
}

TEST(MatchCalls, OrdersThatCrossAreADeadlock) {
  // Ranks 0 and 1 share two groups, and enter them in another order.
  CallLog log(2);
  const auto a = [](int r) { return comm::PlannedGroup{"world/a:0", r, 2}; };
  const auto b = [](int r) { return comm::PlannedGroup{"world/b:0", r, 2}; };
  log.add(0, a(0), kSum), log.add(0, b(0), kSum);
  log.add(1, b(1), kSum), log.add(1, a(1), kSum);
  EXPECT_EQ(log.fault(),
            "rank 0 waits for ever in all_reduce of 8 fp32 of group 'world/a:0': rank 1 is in all_reduce of "
            "8 fp32 of "
            "group 'world/b:0'");
}

TEST(MatchCalls, ARankThatEndsEarlyIsMissed) {
  CallLog log(2);
  log.add(0, world(0, 2), kSum), log.add(0, world(0, 2), kSum), log.add(1, world(1, 2), kSum);
  EXPECT_EQ(log.fault(), "rank 0 waits for ever in all_reduce of 8 fp32 of group 'world': rank 1 has ended");
}

TEST(MatchCalls, LettersOfAnotherSizeOrWithoutAReaderAreFaults) {
  CallLog sizes(2);
  sizes.add(0, world(0, 2), send(1, 4)), sizes.add(1, world(1, 2), recv(0, 5));
  EXPECT_EQ(
      sizes.fault(),
      "rank 1 wants recv of 5 bf16 from rank 0 in group 'world', and rank 0 sends send of 4 bf16 to rank 1");
  CallLog unread(2);
  unread.add(0, world(0, 2), kSum), unread.add(1, world(1, 2), kSum), unread.add(0, world(0, 2), send(1));
  EXPECT_EQ(unread.fault(),
            "rank 0 sends send of 4 bf16 to rank 1 in group 'world', and rank 1 never receives it");
  CallLog waiting(2);
  waiting.add(0, world(0, 2), recv(1)), waiting.add(1, world(1, 2), send(0)),
      waiting.add(0, world(0, 2), recv(1));
  EXPECT_EQ(waiting.fault(),
            "rank 0 waits for ever in recv of 4 bf16 from rank 1 of group 'world': rank 1 has ended");
}

TEST(MatchCalls, RanksThatDisagreeOnAGroupAreADefect) {
  CallLog log(3);
  log.add(0, world(0, 3), kSum);
  EXPECT_THROW(log.add(1, world(1, 2), kSum), Error);
  EXPECT_THROW(log.add(1, world(0, 3), kSum), Error);
}

}  // namespace
}  // namespace cleave::plan
