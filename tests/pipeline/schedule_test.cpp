// Proves every generator, and compares the measurements of the proof with the closed forms of the papers.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "pipeline/simulate.h"

namespace cleave::pipeline {
namespace {

constexpr double kF = 1, kB = 1.25, kW = 0.75;  // binary fractions: sums are exact

Simulation timed(const std::string& name, ScheduleShape shape) {
  SimulateOptions o{.forward = kF, .backward_input = kB, .backward_weight = kW};
  o.work.assign(size_t(shape.pieces()), 1.0 / shape.chunks);
  return simulate(make_schedule(name, shape), o);
}

TEST(Schedule, EveryShapeOfEveryGeneratorIsProved) {
  int proved = 0;
  for (const std::string& name : schedule_names())
    for (int stages = 1; stages <= 12; ++stages)
      for (int micros = 1; micros <= 40; ++micros)
        for (int chunks : {1, 2, 3, 4}) {
          if (chunks > 1 && (name != "interleaved" || stages == 1)) continue;
          const Schedule s = make_schedule(name, {stages, micros, chunks});
          const Simulation free = simulate(s), one = simulate(s, {.capacity = 1});
          ASSERT_EQ(free.fault, "") << name << " " << stages << " " << micros << " " << chunks;
          ASSERT_EQ(one.fault, "") << name << " " << stages << " " << micros << " " << chunks
                                   << ", one message a channel";
          const Schedule f = make_schedule("forward_only", {stages, micros, chunks});
          ASSERT_EQ(simulate(f, {.training = false}).fault, "") << stages << " " << micros << " " << chunks;
          ++proved;
        }
  EXPECT_GT(proved, 3000);
}

TEST(Schedule, SixtyFourStagesWithFiveHundredMicroBatchesAreProved) {
  for (const std::string& name : schedule_names())
    EXPECT_EQ(simulate(make_schedule(name, {64, 512, name == "interleaved" ? 4 : 1})).fault, "") << name;
}

TEST(Schedule, OneForwardOneBackwardNeverHoldsMoreThanStagesMinusRankMicroBatches) {
  for (int stages = 1; stages <= 9; ++stages)
    for (int micros = 1; micros <= 24; ++micros) {
      const Simulation s = simulate(make_schedule("1f1b", {stages, micros, 1}));
      const Simulation g = simulate(make_schedule("gpipe", {stages, micros, 1}));
      const Simulation z = simulate(make_schedule("zb-h1", {stages, micros, 1}));
      for (int r = 0; r < stages; ++r) {
        EXPECT_EQ(s.peak_frames[size_t(r)], std::min(stages - r, micros));
        EXPECT_EQ(g.peak_frames[size_t(r)], micros);
        EXPECT_LE(z.peak_frames[size_t(r)], std::min(stages, micros)) << "not above 1F1B's first stage";
      }
    }
}

// A batch is loaded for its first forward and freed, in order, after its last use on the rank.
TEST(Schedule, BatchesAreLoadedFromTheirFirstToTheirLastUse) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (int stages : {2, 4})
      for (int micros : {1, 4, 9}) {
        const Schedule schedule =
            make_schedule(name, {stages, micros, name == std::string("interleaved") ? 2 : 1});
        const Simulation s = simulate(schedule);
        for (int r = 0; r < stages; ++r) {
          InstructionList uses;  // a split backward uses its batch until the weight gradients
          for (const Instruction& i : schedule.ranks[size_t(r)])
            if (i.op == Op::forward || i.op == Op::backward || i.op == Op::backward_weight) uses.push_back(i);
          int most = 0, loaded = 0;
          for (size_t at = 0; at < uses.size(); ++at) {
            loaded = std::max(loaded, uses[at].micro + 1);
            int oldest = micros;
            for (size_t later = at; later < uses.size(); ++later)
              oldest = std::min(oldest, uses[later].micro);
            most = std::max(most, loaded - oldest);
          }
          EXPECT_EQ(s.peak_batches[size_t(r)], most) << name << ' ' << stages << ' ' << micros << ' ' << r;
        }
      }
}

TEST(Schedule, InterleavedHoldsThePapersNumberOfMicroBatches) {
  for (int stages : {2, 3, 4, 8})
    for (int chunks : {2, 3}) {
      const Simulation s = simulate(make_schedule("interleaved", {stages, 6 * stages, chunks}));
      for (int r = 0; r < stages; ++r)
        EXPECT_EQ(s.peak_frames[size_t(r)], 2 * (stages - r - 1) + (chunks - 1) * stages + 1);
    }
}

// p stages, m micro-batches: a step of length m (F + B + W) + bubble.
TEST(Schedule, BubblesEqualTheClosedForms) {
  for (int p = 1; p <= 8; ++p)
    for (int m = p; m <= 32; ++m) {
      const double work = m * (kF + kB + kW);
      EXPECT_DOUBLE_EQ(timed("gpipe", {p, m, 1}).makespan, work + (p - 1) * (kF + kB + kW));
      EXPECT_DOUBLE_EQ(timed("1f1b", {p, m, 1}).makespan, work + (p - 1) * (kF + kB + kW));
      EXPECT_NEAR(timed("1f1b", {p, m, 1}).idle_share(), (p - 1.0) / (m + p - 1), 1e-15 * m);
      if (p > 1 && m % p == 0) {
        EXPECT_DOUBLE_EQ(timed("interleaved", {p, m, 2}).makespan, work + (p - 1) * (kF + kB + kW) / 2);
        EXPECT_DOUBLE_EQ(timed("interleaved", {p, m, 4}).makespan, work + (p - 1) * (kF + kB + kW) / 4);
      }
      if (m >= 2 * p) {
        EXPECT_DOUBLE_EQ(timed("zb-h1", {p, m, 1}).makespan, work + (p - 1) * (kF + kB - kW))
            << p << " " << m;
      }
    }
}

// A layer without split backward computes the input gradient as late as 1f1b does.
TEST(Schedule, GainsOnlyFromLayersWithASplitBackward) {
  for (int p = 2; p <= 6; ++p)
    for (int m = 2 * p; m <= 24; m += 3) {
      const Schedule zb = make_schedule("zb-h1", {p, m, 1});
      const auto makespan = [&](double share) {
        SimulateOptions o{.forward = kF, .backward_input = kB, .backward_weight = kW};
        o.splits.assign(size_t(p), share);
        return simulate(zb, o).makespan;
      };
      const double work = m * (kF + kB + kW);
      EXPECT_DOUBLE_EQ(makespan(0), work + (p - 1) * (kF + kB + kW)) << p << " " << m;
      EXPECT_DOUBLE_EQ(makespan(1), work + (p - 1) * (kF + kB - kW)) << p << " " << m;
      EXPECT_GT(makespan(0.5), makespan(1));
      EXPECT_LT(makespan(0.5), makespan(0));
    }
}

TEST(Schedule, GpipeAndOneForwardOneBackwardAccumulateMicroBatchesInTheSameOrder) {
  for (const char* name : {"gpipe", "1f1b", "interleaved"})
    for (const InstructionList& list : make_schedule(name, {4, 9, 1}).ranks) {
      int next = 0;
      for (const Instruction& i : list)
        if (i.op == Op::backward) {
          EXPECT_EQ(i.micro, next++) << name;
        }
    }
}

TEST(Schedule, OneStageIsGradientAccumulation) {
  const InstructionList want = {{Op::forward, 0}, {Op::backward, 0}, {Op::forward, 1}, {Op::backward, 1}};
  EXPECT_EQ(make_schedule("1f1b", {1, 2, 1}).ranks[0], want);
}

TEST(Schedule, RejectsUnsupportedShapes) {
  const auto message = [](const char* name, ScheduleShape shape) -> std::string {
    try {
      make_schedule(name, shape);
    } catch (const Error& e) {
      return fmt::format("{}: {}", int(e.exit()), e.what());
    }
    return "";
  };
  EXPECT_EQ(
      message("1f1b", {2, 4, 2}),
      "2: pipeline.virtual_stages is 2, but the schedule 1f1b has one chunk per rank; use \"interleaved\"");
  EXPECT_NE(message("interleaved", {1, 4, 2}), "");
  EXPECT_NE(message("gpipe", {0, 4, 1}), "");
  EXPECT_EQ(message("2f2b", {2, 4, 1}),
            "2: pipeline.schedule: unknown (got \"2f2b\", expected gpipe, 1f1b, interleaved, zb-h1)");
}

}  // namespace
}  // namespace cleave::pipeline
