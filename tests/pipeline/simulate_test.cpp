// The proof must fail for any error: these schedules are correct except for one change.
#include "pipeline/simulate.h"

#include <gtest/gtest.h>

namespace cleave::pipeline {
namespace {

Schedule good() { return make_schedule("1f1b", {3, 4, 1}); }

TEST(Simulate, DetectsAnyMissingInstruction) {
  for (const std::string& name : schedule_names()) {
    const Schedule whole = make_schedule(name, {3, 4, name == "interleaved" ? 2 : 1});
    for (size_t r = 0; r < whole.ranks.size(); ++r)
      for (size_t i = 0; i < whole.ranks[r].size(); ++i) {
        Schedule broken = whole;
        broken.ranks[r].erase(broken.ranks[r].begin() + long(i));
        EXPECT_NE(simulate(broken).fault, "") << name << ", rank " << r << ", instruction " << i;
      }
  }
}

TEST(Simulate, DetectsAnyDuplicateInstruction) {
  for (const std::string& name : schedule_names()) {
    const Schedule whole = make_schedule(name, {3, 4, name == "interleaved" ? 2 : 1});
    for (size_t r = 0; r < whole.ranks.size(); ++r)
      for (size_t i = 0; i < whole.ranks[r].size(); ++i) {
        Schedule broken = whole;
        broken.ranks[r].insert(broken.ranks[r].begin() + long(i), whole.ranks[r][i]);
        EXPECT_NE(simulate(broken).fault, "") << name << ", rank " << r << ", instruction " << i;
      }
  }
}

TEST(Simulate, DetectsADifferentOrderOfSendsAndReceives) {
  const Schedule s{{2, 2, 1},
                   {with_transfers({{Op::forward, 1}, {Op::forward, 0}, {Op::backward, 0}, {Op::backward, 1}},
                                   {2, 2, 1}, 0),
                    with_transfers({{Op::forward, 0}, {Op::backward, 0}, {Op::forward, 1}, {Op::backward, 1}},
                                   {2, 2, 1}, 1)}};
  EXPECT_EQ(simulate(s).fault,
            "rank 1: recv_activation of micro-batch 0, chunk 0: the next message is micro-batch 1 for piece "
            "1 of the model (expected this micro-batch for piece 1)");
}

TEST(Simulate, ReportsADeadlockWithAllItsRanks) {
  // Rank 0 needs micro-batch 0's gradient before it sends micro-batch 1; rank 1 runs both forwards first.
  const Schedule s{{2, 2, 1},
                   {with_transfers({{Op::forward, 0}, {Op::backward, 0}, {Op::forward, 1}, {Op::backward, 1}},
                                   {2, 2, 1}, 0),
                    with_transfers({{Op::forward, 0}, {Op::forward, 1}, {Op::backward, 0}, {Op::backward, 1}},
                                   {2, 2, 1}, 1)}};
  EXPECT_EQ(
      simulate(s).fault,
      "deadlock: rank 0 waits in recv_gradient of micro-batch 0, chunk 0; rank 1 waits in recv_activation of "
      "micro-batch 1, chunk 0");
}

TEST(Simulate, DetectsABackwardBeforeItsForward) {
  Schedule s = good();
  for (InstructionList& list : s.ranks)
    for (Instruction& i : list)
      if (i.op == Op::backward) i.micro = 3 - i.micro;
  EXPECT_NE(simulate(s).fault, "");
}

TEST(Simulate, DetectsAWeightGradientBeforeItsInputGradient) {
  Schedule s = good();
  for (Instruction& i : s.ranks[0])
    if (i.op == Op::backward) i.op = Op::backward_weight;
  EXPECT_NE(simulate(s).fault.find("there was no backward_input before it"), std::string::npos);
}

TEST(Simulate, ASlowStageSetsThePace) {
  // Piece 1 takes twice the time, so the others wait for it in every micro-batch.
  const Simulation s = simulate(make_schedule("1f1b", {2, 8, 1}), {.work = {1, 2}});
  EXPECT_DOUBLE_EQ(s.makespan, 8 * 6 + 1 + 2);
  EXPECT_DOUBLE_EQ(s.busy[0], 24);
  EXPECT_DOUBLE_EQ(s.busy[1], 48);
}

TEST(Simulate, AChannelOfOneMessageMakesAFastSenderWait) {
  const Simulation free = simulate(make_schedule("gpipe", {2, 8, 1}), {.work = {1, 2}});
  EXPECT_EQ(free.peak_messages, 8);
  EXPECT_EQ(simulate(make_schedule("gpipe", {2, 8, 1}), {.capacity = 1, .work = {1, 2}}).peak_messages, 1);
  // The second stage receives messages at 1, 11 and 21, so the third message waits at the sender from 3
  // to 11.
  const auto begins = [](int64_t capacity) {
    const Simulation s =
        simulate(make_schedule("gpipe", {2, 4, 1}), {.capacity = capacity, .work = {1, 10}, .record = true});
    std::vector<double> out;
    for (const Span& span : s.spans[0])
      if (span.what.op == Op::forward) out.push_back(span.begin);
    return out;
  };
  EXPECT_EQ(begins(1), (std::vector<double>{0, 1, 2, 11}));
  EXPECT_EQ(begins(SimulateOptions::kUnlimited), (std::vector<double>{0, 1, 2, 3}));
}

TEST(Simulate, RecordsEveryComputationOnceInOrderWithoutOverlap) {
  for (const std::string& name : schedule_names()) {
    const Schedule schedule = make_schedule(name, {3, 6, name == "interleaved" ? 2 : 1});
    const Simulation s = simulate(schedule, {.record = true});
    EXPECT_TRUE(simulate(schedule).spans.empty());
    ASSERT_EQ(s.spans.size(), 3u);
    for (size_t r = 0; r < s.spans.size(); ++r) {
      double busy = 0, last = 0;
      int most = 0;
      InstructionList computed, listed;
      for (const Instruction& i : schedule.ranks[r])
        if (i.op <= Op::backward_weight) listed.push_back(i);
      for (const Span& span : s.spans[r]) {
        EXPECT_GE(span.begin, last) << name;
        last = span.end, busy += span.end - span.begin, most = std::max(most, span.frames);
        computed.push_back(span.what);
      }
      EXPECT_EQ(computed, listed) << name;
      EXPECT_DOUBLE_EQ(busy, s.busy[r]) << name;
      EXPECT_EQ(most, s.peak_frames[r]) << name;
      EXPECT_LE(last, s.makespan) << name;
    }
  }
}

}  // namespace
}  // namespace cleave::pipeline
