// Ranks with clocks that show different times.
#include "comm/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/communicator.h"

namespace cleave::comm {
namespace {

double now() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TEST(Clock, ErrorIsAtMostHalfTheRoundTrip) {
  run_ranks(4, [](Communicator& world) {
    const double shift = 1e9 * world.rank();
    const ClockOffset got = clock_offset(world, [&] { return now() + shift; });
    EXPECT_LE(std::abs(got.offset + shift), got.round_trip / 2 + 1e-3);  // doubles of 1e9 have steps of 1e-7
    EXPECT_EQ(got.round_trip == 0, world.rank() == 0);
  });
}

// A delay in one direction makes the offset of a round wrong, and the round does not count.
TEST(Clock, TheShortestRoundTripCounts) {
  run_ranks(2, [](Communicator& world) {
    int asked = 0;
    double late = 0;  // delay of the second rank's clock, for this many readings
    const ClockOffset got = clock_offset(world, [&] {
      if (world.rank() == 1 && ++asked % 2 == 0 && asked < 14) late += 1e6;  // between sending and receiving
      return now() + late;
    });
    if (world.rank() == 1) {
      EXPECT_EQ(asked, 16);
      EXPECT_LT(got.round_trip, 1e6);
      EXPECT_LE(std::abs(got.offset + late), got.round_trip / 2 + 1e-3);
    }
  });
}

TEST(Clock, OfASingleRankHasNoOffset) {
  const auto alone = self_communicator();
  EXPECT_EQ(clock_offset(*alone, now).offset, 0);
}

}  // namespace
}  // namespace cleave::comm
