// Replays of enqueued work: what runs at the same time, and what waits. Expected times are sums by hand.
#include "plan/timeline.h"

#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "tests/plan/planned.h"

namespace cleave::testing {
namespace {

using Kind = WorkEntry::Kind;
using comm::Collective;

constexpr int kCompute = 0, kComm = 1;
// One FLOP or byte per second; the network is four times slower.
constexpr plan::ReplayRates kRates{.flops = 1, .memory = 1, .node_link = 1, .network = 0.25};

WorkEntry launch(double flops, bool repeated = false, double bytes = 0) {
  return {.repeated = repeated, .stream = kCompute, .flops = flops, .bytes = bytes};
}
WorkEntry message(Collective op, double bytes, int stream = kComm, int peer = -1) {
  return {
      .kind = Kind::message, .op = uint8_t(op), .stream = stream, .group = 0, .peer = peer, .bytes = bytes};
}
WorkEntry record(int stream, int64_t event) {
  return {.kind = Kind::record, .stream = stream, .event = event};
}
WorkEntry wait(int stream, int64_t event) { return {.kind = Kind::wait, .stream = stream, .event = event}; }

double seconds(std::vector<WorkEntry> entries, plan::RankWork::Group group = {"g", 2, 2, 0}) {
  const plan::RankWork work{.entries = std::move(entries), .groups = {group}};
  const plan::RankWork* const stages[] = {&work};
  return plan::replay(stages, kRates).step;
}

TEST(Timeline, HidesAMessageBehindTheWorkThatDoesNotWaitForIt) {
  const std::vector<WorkEntry> start = {launch(3), record(kCompute, 1), wait(kComm, 1),
                                        message(Collective::all_gather, 2), record(kComm, 2)};
  auto hidden = start, waited = start;
  hidden.insert(hidden.end(), {launch(5), wait(kCompute, 2), launch(1)});
  EXPECT_DOUBLE_EQ(seconds(hidden), 3 + 5 + 1);
  waited.insert(waited.end(), {wait(kCompute, 2), launch(5), launch(1)});
  EXPECT_DOUBLE_EQ(seconds(waited), 3 + 2 + 5 + 1);
  auto partly = start;
  partly.insert(partly.end(), {launch(0.5), wait(kCompute, 2), launch(5)});
  EXPECT_DOUBLE_EQ(seconds(partly), 3 + 2 + 5);
}

TEST(Timeline, CountsTheMemoryTrafficOfRepeatedLaunchesOnly) {
  EXPECT_DOUBLE_EQ(seconds({launch(3, false, 100), launch(2, true, 4)}), 3 + 2 + 4);
}

// A ring over two nodes with n of its ranks each uses n links to the network.
TEST(Timeline, SharesTheNetworkLinksOfANode) {
  const std::vector<WorkEntry> entries = {message(Collective::all_reduce, 8)};
  EXPECT_DOUBLE_EQ(seconds(entries, {"g", 4, 4, 0}), 8);
  EXPECT_DOUBLE_EQ(seconds(entries, {"g", 4, 1, 0}), 8 / 0.25);
  EXPECT_DOUBLE_EQ(seconds(entries, {"g", 4, 2, 0}), 8 / 0.5);
  EXPECT_DOUBLE_EQ(seconds(entries, {"g", 64, 8, 0}), 8);
}

// Two stages: the second starts when the message has arrived; the first continues during the message.
TEST(Timeline, MessagesBetweenStagesArriveAfterTheirTransfer) {
  const plan::RankWork first{
      .entries = {launch(3), record(kCompute, 1), wait(kComm, 1), message(Collective::send, 2, kComm, 1),
                  launch(1), message(Collective::all_reduce, 1, kCompute)},
      .groups = {{"pipe", 2, 2, 0}}};
  const plan::RankWork second{
      .entries = {message(Collective::recv, 0, kComm, 0), record(kComm, 1), wait(kCompute, 1), launch(7),
                  message(Collective::all_reduce, 1, kCompute)},
      .groups = {{"pipe", 2, 2, 1}}};
  const plan::RankWork* const stages[] = {&first, &second};
  const plan::Replayed whole = plan::replay(stages, kRates);
  EXPECT_DOUBLE_EQ(whole.step, 3 + 2 + 7 + 1);
  EXPECT_DOUBLE_EQ(whole.compute, 7);
  EXPECT_DOUBLE_EQ(whole.launched, 3 + 1 + 7);
  plan::ReplayRates free = kRates;
  free.messages = false;
  EXPECT_DOUBLE_EQ(plan::replay(stages, free).step, 3 + 7);
}

// The engine's own order: with a tensor axis that overlaps, messages hide behind products; without, none
// does.
TEST(Timeline, CountsThatTheTensorAxisOverlapsProducts) {
  const auto exposed = [](bool overlap) {
    config::DsConfig c = config_for(1, 4, 1);
    c.tensor_parallel.autotp_size = 4, c.tensor_parallel.tp_overlap_comm = overlap;
    c.tensor_parallel.overlap_rows = 64;
    const plan::JobPlan plan = testing::plan_for(c, 4, [](const model::Axes& axes) {
      return model::make_model(model::kGpt2,
                               {.vocab = 64, .positions = 512, .width = 64, .layers = 4, .heads = 4},
                               DType::fp32, 512, "long", axes);
    });
    plan::ReplayRates rates{.flops = 1e9, .memory = 1e9, .node_link = 1e7, .network = 1e7};
    const plan::RankWork* const stages[] = {plan.ranks.front().enqueued.get()};
    const plan::Replayed with = plan::replay(stages, rates);
    rates.messages = false;
    EXPECT_GT(with.messages, 0);
    return (with.step - plan::replay(stages, rates).step) / with.messages;
  };
  EXPECT_NEAR(exposed(false), 1, 1e-4);  // sums on the host wait for nothing
  EXPECT_LT(exposed(true), 0.7);
}

}  // namespace
}  // namespace cleave::testing
