#include "comm/flight_ring.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/phase.h"

namespace cleave::comm {
namespace {

FlightCall call(int group, uint64_t number, std::string_view what = "gradients of h.3",
                const char* phase = "backward") {
  return {group, number, {Collective::all_reduce, DType::fp32, -1, int64_t(number)}, what, phase, 5};
}

TEST(FlightRing, KeepsTheLatestCallsWithTheirTimes) {
  FlightRing ring;
  const int data = ring.join("data", {0, 1});
  EXPECT_EQ(ring.join("data", {0, 1}), data);
  EXPECT_NE(ring.join("data", {0, 2}), data);
  std::vector<uint64_t> tickets;
  for (uint64_t n = 1; n <= 100; ++n) tickets.push_back(ring.enter(call(data, n), int64_t(1000 + n)));
  ring.finish(tickets[98], 2000);
  FlightRing::Seen seen;
  EXPECT_FALSE(ring.read(tickets[35], seen));
  ASSERT_TRUE(ring.read(tickets[36], seen));
  EXPECT_EQ(seen.call.number, 37u);
  EXPECT_EQ(seen.finished_ns, 0);
  ASSERT_TRUE(ring.read(tickets[98], seen));
  EXPECT_EQ(seen.call.what, "gradients of h.3");
  EXPECT_STREQ(seen.call.phase, "backward");
  EXPECT_EQ(seen.call.post, (Post{Collective::all_reduce, DType::fp32, -1, 99}));
  EXPECT_EQ(seen.entered_ns, 1099);
  EXPECT_EQ(seen.finished_ns, 2000);
  EXPECT_EQ(ring.group(data)->entered, 100u);
  EXPECT_EQ(ring.group(data)->done, 99u);
}

TEST(FlightRing, IgnoresTheEndOfACallThatItDropped) {
  FlightRing ring;
  const uint64_t old = ring.enter(call(-1, 1));
  uint64_t last = 0;
  for (uint64_t n = 2; n <= 1 + FlightRing::kCalls; ++n) last = ring.enter(call(-1, n));
  ring.finish(old, 7);
  FlightRing::Seen seen;
  ASSERT_TRUE(ring.read(last, seen));
  EXPECT_EQ(seen.call.number, 1 + FlightRing::kCalls);
  EXPECT_EQ(seen.finished_ns, 0);
}

TEST(FlightRing, AddsTheTimesInCallsByPhase) {
  FlightRing ring;
  ring.finish(ring.enter(call(-1, 1, "", "forward"), 100), 130);
  ring.finish(ring.enter(call(-1, 2, "", "backward"), 100), 107);
  ring.finish(ring.enter(call(-1, 3, "", "backward"), 100), 108);
  ring.finish(ring.enter(call(-1, 4, "", ""), 100), 101);
  EXPECT_EQ(ring.time_in_calls(FlightRing::Phase::forward), 30);
  EXPECT_EQ(ring.time_in_calls(FlightRing::Phase::backward), 15);
  EXPECT_EQ(ring.time_in_calls(FlightRing::Phase::update), 0);
  EXPECT_EQ(ring.time_in_calls(FlightRing::Phase::other), 1);
}

TEST(FlightRing, NeverReturnsATornCall) {
  FlightRing ring;
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w)
    writers.emplace_back([&] {
      for (uint64_t n = 1; n <= 300'000; ++n) ring.enter(call(-1, n, std::to_string(n)));
    });
  int wrong = 0;
  for (uint64_t last = 0; last < 600'000; last = ring.made()) {
    FlightRing::Seen seen;
    for (uint64_t t = last > 70 ? last - 70 : 0; t <= last; ++t)
      if (ring.read(t, seen))
        wrong += seen.call.what != std::to_string(seen.call.number) ||
                 seen.call.post.numel != int64_t(seen.call.number);
  }
  for (auto& w : writers) w.join();
  EXPECT_EQ(wrong, 0);
}

TEST(FlightRing, HasTheCallsOfACommunicatorWithTheirPhase) {
  FlightRing ring;  // of all ranks: threads of one process
  run_ranks(2,
            [](Communicator& world) {
              Stream stream;
              float x[4] = {};
              const PhaseMark phase("update");
              world.all_reduce(Tensor(x, DType::fp32, {4}), stream, {.what = "norm"});
            },
            {.flights = &ring});
  ASSERT_EQ(ring.made(), 2u);
  for (uint64_t t : {1, 2}) {
    FlightRing::Seen seen;
    ASSERT_TRUE(ring.read(t, seen));
    EXPECT_EQ(seen.call.what, "norm");
    EXPECT_STREQ(seen.call.phase, "update");
    EXPECT_GT(seen.finished_ns, seen.entered_ns - 1);
    EXPECT_EQ(ring.group(seen.call.group)->name, "world");
  }
}

}  // namespace
}  // namespace cleave::comm
