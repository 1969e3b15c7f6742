// Steps of collectives through segments, executed in host memory one at a time. A scheduler lets ranks run
// ahead of each other in every way that their waits allow.
#include "comm/ipc/collective_steps.h"

#include <algorithm>
#include <random>

#include "tests/comm/ipc_simulation.h"

namespace cleave::comm {
namespace {

using test::Kind;
using Ranks = test::SimulatedRanks;
using Calls = test::SimulatedCalls;

// Runs each rank in turn as far as possible; from last to first if `backwards`.
bool run_greedily(Ranks ranks, bool backwards) {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t i = 0; i < ranks.size(); ++i)
      while (ranks.advance(backwards ? ranks.size() - 1 - i : i)) moved = true;
  }
  return ranks.finished() && ranks.right();
}

// Runs ranks in random order, each for a burst of steps.
bool run_at_random(Ranks ranks, unsigned seed) {
  std::mt19937 random(seed);
  for (int stuck = 0; stuck < 200;) {
    const size_t r = random() % ranks.size();
    const unsigned burst = 1 + unsigned(random() % (seed % 2 ? 3 : 40));
    unsigned moved = 0;
    while (moved < burst && ranks.advance(r)) ++moved;
    stuck = moved ? 0 : stuck + 1;
    if (ranks.finished()) break;
  }
  return ranks.finished() && ranks.right();
}

bool right_in_every_order(const Calls& calls, unsigned seeds = 20) {
  bool right = run_greedily(calls.ranks(), false) && run_greedily(calls.ranks(), true);
  for (unsigned seed = 0; seed < seeds && right; ++seed) right = run_at_random(calls.ranks(), seed);
  return right;
}

void add_everything(Calls& calls, int size, DType t, int64_t numel) {
  const bool reduces = can_reduce(t);
  for (bool in_place : {false, true}) {
    calls.all_gather(t, numel, {0, numel}, in_place);
    if (reduces)
      calls.reduce_scatter(t, numel, {0, numel}, in_place, in_place ? Reduction::max : Reduction::sum);
  }
  calls.all_gather(t, numel, {numel / 3, numel / 2}, false);
  if (reduces) calls.reduce_scatter(t, numel, {numel / 3, numel / 2}, false, Reduction::sum);
  for (const Reduction by : {Reduction::sum, Reduction::max})
    if (reduces) calls.all_reduce(t, numel, by);
  for (int root = 0; root < size; ++root) calls.broadcast(t, numel, root);
  calls.all_to_all(t, numel);
}

TEST(IpcPlan, GivesTheBitsOfOtherTransportsInEveryOrderOfSteps) {
  for (int size : {2, 3, 5})
    for (int slots : {1, 2})
      for (DType t : {DType::fp32, DType::fp16, DType::bf16, DType::fp64, DType::int64, DType::int32,
                      DType::uint16, DType::uint8}) {
        Calls calls(size, 64 * size + 32, slots);
        for (int64_t numel : {0, 1, 7, 101}) add_everything(calls, size, t, numel);
        EXPECT_TRUE(right_in_every_order(calls)) << size << " ranks, " << slots << " slots, " << name_of(t);
      }
}

TEST(IpcPlan, AddsPartsOfLargeChunksAndForwardsThem) {
  for (int size : {2, 3, 4}) {
    Calls calls(size, 96 << 10, 2);
    for (DType t : {DType::fp32, DType::bf16}) calls.all_reduce(t, 60'001), calls.all_reduce(t, 5);
    EXPECT_TRUE(right_in_every_order(calls, 6)) << size << " ranks";
  }
}

TEST(IpcPlan, WorksWhenWordsWrap) {
  Calls calls(3, 256, 2, 0xfffffff0u);
  for (int i = 0; i < 4; ++i) add_everything(calls, 3, DType::fp32, 101);
  EXPECT_TRUE(right_in_every_order(calls));
}

TEST(IpcPlan, CarriesMessagesOneAtATimeAndSendsTheFirstWithoutWaiting) {
  Calls calls(2, 1 << 10, 1);
  for (int64_t numel : {100, 1, 256, 7}) calls.message(DType::fp32, numel);
  EXPECT_TRUE(right_in_every_order(calls));
  Ranks ranks = calls.ranks();
  int alone = 0;
  while (ranks.advance(0)) ++alone;
  EXPECT_EQ(alone, 3) << "a wait that passes, a copy and a signal; the next waits for the receiver";
}

// Without any single wait, some order of steps gives other results or reads invalid data, so the tests above
// would detect it.
TEST(IpcPlan, NeedsItsWaits) {
  const auto without = [](Kind kind, IpcWord word) {
    Calls calls(3, 256, 2);
    for (int i = 0; i < 3; ++i) add_everything(calls, 3, DType::fp32, 101);
    calls.all_reduce(DType::fp32, 101);
    for (auto& rank : calls.made())
      for (test::SimulatedCall& call : rank)
        std::erase_if(call.steps, [&](const IpcStep& s) { return s.kind == kind && s.word == word; });
    return right_in_every_order(calls);
  };
  EXPECT_FALSE(without(Kind::wait, IpcWord::ready));
  EXPECT_FALSE(without(Kind::wait, IpcWord::done));
  EXPECT_TRUE(without(Kind::wait, IpcWord::reduced)) << "small chunks have none";
  Calls large(3, 96 << 10, 2);
  for (int i = 0; i < 3; ++i) large.all_reduce(DType::fp32, 60'001);
  for (auto& rank : large.made())
    for (test::SimulatedCall& call : rank)
      std::erase_if(call.steps,
                    [](const IpcStep& s) { return s.kind == Kind::wait && s.word == IpcWord::reduced; });
  EXPECT_FALSE(right_in_every_order(large));
}

TEST(IpcPlan, ReleasesEveryWait) {
  Calls calls(3, 256, 2);
  add_everything(calls, 3, DType::fp32, 1001);
  uint32_t last = 0;
  for (const test::SimulatedCall& call : calls.made()[1])
    for (const IpcStep& s : call.steps) last = std::max(last, s.value);
  for (const test::SimulatedCall& call : calls.made()[1])
    for (const IpcStep& s : call.steps)
      EXPECT_TRUE(s.kind != Kind::wait || has_come_to(last + kIpcRelease, s.value));
}

TEST(IpcPlan, RejectsSlotsTooSmallForAllRanksOrAMessage) {
  EXPECT_THROW(IpcStepBuilder(0, 3, 128, 2), Error);
  EXPECT_THROW(IpcStepBuilder(0, 2, 128, 1).send(129), Error);
}

}  // namespace
}  // namespace cleave::comm
