// Sums of hand-made events: times of steps, bandwidths of collectives and costs of layers.
#include <gtest/gtest.h>

#include "monitor/comms_log.h"
#include "monitor/layer_profile.h"
#include "monitor/step_times.h"
#include "monitor/time_columns.h"

namespace cleave::monitor {
namespace {

struct Made {
  Stream compute, comm;
  TraceEvent operator()(const char* category, const char* name, double begin_ms, double end_ms,
                        bool on_comm = false) const {
    return {.name = name,
            .category = category,
            .stream = on_comm ? &comm : &compute,
            .begin_us = 1e3 * begin_ms,
            .end_us = 1e3 * end_ms};
  }
  TraceEvent collective(std::string_view op, int64_t bytes, int ranks, double begin_ms, double end_ms,
                        bool on_comm = false) const {
    TraceEvent e = (*this)("collective", "a call of data: gradients", begin_ms, end_ms, on_comm);
    e.op = op, e.bytes = bytes, e.ranks = ranks;
    return e;
  }
};

double at(const PhaseTimes& times, Phase phase) { return times[size_t(phase)]; }

TEST(StepTimes, CountAnEventWithoutNestedEventsOnItsStream) {
  const Made make;
  StepTimes times;
  times.see(make("pipeline", "forward", 10, 30));
  times.see(make.collective("all_gather", 64, 2, 12, 15));
  times.see(make("forward", "h.0", 15, 25));
  times.see(make.collective("all_reduce", 64, 2, 20, 21));  // of a tensor axis, inside a layer
  times.see(make("pipeline", "backward", 30, 70));
  times.see(make("recompute", "h.0", 31, 36));
  times.see(make("backward", "h.0", 36, 50));
  times.see(make.collective("reduce_scatter", 64, 2, 40, 60, true));  // concurrent, on another stream
  times.see(make("step", "update", 70, 80));
  times.see(make("update", "h.0", 72, 74));
  times.see(make("disk", "read", 71, 75, true));
  times.add(Phase::data, 1.5);
  const PhaseTimes got = times.take();
  EXPECT_DOUBLE_EQ(at(got, Phase::forward), 20 - 3 - 1);
  EXPECT_DOUBLE_EQ(at(got, Phase::gathers), 3);
  EXPECT_DOUBLE_EQ(at(got, Phase::backward), 40);
  EXPECT_DOUBLE_EQ(at(got, Phase::reductions), 20 + 1);
  EXPECT_DOUBLE_EQ(at(got, Phase::update), 10);
  EXPECT_DOUBLE_EQ(at(got, Phase::offload), 4);
  EXPECT_DOUBLE_EQ(at(got, Phase::data), 1.5);
  EXPECT_DOUBLE_EQ(at(got, Phase::exchanges), 0);
  EXPECT_DOUBLE_EQ(at(times.take(), Phase::forward), 0) << "take() resets the sums";
}

TEST(StepTimes, DistinguishTransfersAndStagedStateFromComputation) {
  const Made make;
  StepTimes times;
  times.see(make("pipeline", "recv_activation", 0, 5));
  times.see(make.collective("recv", 64, 2, 1, 4));
  times.see(make("pipeline", "backward_weight", 5, 7));
  times.see(make("update", "kernels", 7, 8, true));
  const PhaseTimes got = times.take();
  EXPECT_DOUBLE_EQ(at(got, Phase::exchanges), 5);
  EXPECT_DOUBLE_EQ(at(got, Phase::backward), 2);
  EXPECT_DOUBLE_EQ(at(got, Phase::update), 1);
}

TEST(StepTimes, ArePrintedAsMeansOfTheFirstRankWithTheSpreadOfAll) {
  const std::vector<std::string_view> names = {"step", "forward", "reductions", "gathers"};
  EXPECT_EQ(
      format_times(names, {{100, 20, 0, 0}, {104, 30, 0, 5}}, 2),
      "time (ms) | step: 50.00 [50.00 to 52.00] | forward: 10.00 [10.00 to 15.00] | gathers: 0.00 [0.00 to "
      "2.50]");
  EXPECT_EQ(format_times(names, {{7, 20, 0, 0}}, 1), "time (ms) | step: 7.00 | forward: 20.00");
}

TEST(TimeColumns, OfScriptsAreTimersOfTheCallerAndPhasesOfTheEngine) {
  MeasuredStep step{.ms = 100};
  for (size_t p = 0; p < step.phases.size(); ++p) step.phases[p] = double(1 << p);
  step.timers = {1000, 2000, 3000, 4000};
  const std::vector<double> got = columns_of(config::Front::scripts, step);
  const auto names = names_of_columns(config::Front::scripts);
  const std::map<std::string_view, double> wanted = {
      {"fwd", 1002},  {"bwd", 2004},   {"bwd_inner", 3004}, {"bwd_allreduce", 8},
      {"step", 4000}, {"gathers", 16}, {"exchanges", 32},   {"offload", 128}};
  ASSERT_EQ(names.size(), wanted.size());
  for (size_t c = 0; c < names.size(); ++c) EXPECT_EQ(got[c], wanted.at(names[c])) << names[c];
  EXPECT_EQ(columns_of(config::Front::train, step),
            (std::vector<double>{100, 1, 2, 4, 8, 16, 32, 64, 128, 256}));
}

// Definitions of NCCL (its tests' PERFORMANCE.md): 1 GB over 4 ranks in 0.5 s.
TEST(CommsLog, ComputesBandwidthsByNcclDefinitions) {
  const double n = 4, gb = 1e9;
  for (const auto& [op, factor] : std::map<std::string, double>{{"all_reduce", 2 * (n - 1) / n},
                                                                {"all_gather", (n - 1) / n},
                                                                {"reduce_scatter", (n - 1) / n},
                                                                {"all_to_all", (n - 1) / n},
                                                                {"broadcast", 1},
                                                                {"send", 1}}) {
    const Bandwidth b = bandwidth_of(op, int64_t(gb), 4, 0.5);
    EXPECT_DOUBLE_EQ(b.algorithm, 2 * gb) << op;
    EXPECT_DOUBLE_EQ(b.bus, 2 * gb * factor) << op;
  }
}

TEST(CommsLog, HasARowPerCollectiveAndSize) {
  const Made make;
  CommsLog log;
  for (int call = 0; call < 10; ++call)  // one of ten is much slower and excluded from the mean
    EXPECT_TRUE(
        log.see(make.collective("all_reduce", 4'000'000, 2, 100 * call, 100 * call + (call ? 2 : 50))));
  EXPECT_TRUE(log.see(make.collective("all_gather", 1'000'000, 2, 0, 1)));
  EXPECT_FALSE(log.see(make("pipeline", "forward", 0, 1)));
  const std::string table = log.table();
  EXPECT_NE(
      table.find("all_reduce      3.81 MiB     2       10        68.00      2.000         2.00         2.00"),
      std::string::npos)
      << table;
  EXPECT_NE(
      table.find("all_gather    976.56 KiB     2        1         1.00      1.000         1.00         0.50"),
      std::string::npos)
      << table;
}

TEST(CommsLog, SumsTheCollectivesSinceTheLastSums) {
  const Made make;
  CommsLog log({.ops = {"all_reduce", "all_gather"}});
  log.see(make.collective("all_reduce", 64, 2, 0, 1)), log.see(make.collective("all_reduce", 32, 2, 1, 3));
  log.see(make.collective("all_gather", 16, 2, 3, 4)), log.see(make.collective("send", 16, 2, 3, 4));
  const auto sums = log.take_sums();
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(sums.at("all_reduce").calls, 2);
  EXPECT_EQ(sums.at("all_reduce").bytes, 96);
  EXPECT_DOUBLE_EQ(sums.at("all_reduce").seconds, 3e-3);
  EXPECT_EQ(sums.at("all_gather").bytes, 16);
  EXPECT_TRUE(log.take_sums().empty());
}

TEST(CommsLog, LogsOnlyTheSelectedOperationsAndSeparatesGroupsOnRequest) {
  const Made make;
  CommsLog some({.ops = {"all_gather_into_tensor", "send"}});
  EXPECT_TRUE(some.see(make.collective("all_gather", 64, 2, 0, 1)));
  EXPECT_FALSE(some.see(make.collective("all_reduce", 64, 2, 0, 1)));
  CommsLog groups({.with_groups = true});
  groups.see(make.collective("all_gather", 64, 2, 0, 1));
  EXPECT_NE(groups.table().find("a call of data: gradients"), std::string::npos);
  EXPECT_EQ(
      some.line_of(make.collective("send", 3'000'000, 2, 5, 6)),
      "comm op: send | time (ms): 1.000 | msg size: 2.86 MiB | algbw (GB/s): 3.00 | busbw (GB/s): 3.00");
}

TEST(LayerProfile, AddsUpTheTimesOfEachLayer) {
  const Made make;
  LayerTimes times(2);
  const auto see = [&](const char* category, int layer, double begin_ms, double end_ms) {
    TraceEvent e = make(category, "layer", begin_ms, end_ms);
    e.layer = layer;
    times.see(e);
  };
  see("forward", 0, 0, 1), see("forward", 1, 1, 3), see("backward", 2, 3, 7), see("recompute", 1, 7, 8);
  see("backward", 1, 8, 12), see("forward", 0, 12, 13);
  times.see(make("step", "update", 13, 20));
  EXPECT_EQ(times.ms(), (std::vector<double>{2, 0, 2, 5, 0, 4}));
}

TEST(LayerProfile, ShowsSharesRatesAndTheLargestKinds) {
  const std::vector<LayerRow> rows = {{"wte", 2000, 0, 1, 1},
                                      {"h.0", 3000, 30e9, 2, 4},
                                      {"h.11", 3000, 30e9, 2, 4},
                                      {"head", 2000, 40e9, 0, 6}};
  const std::string text = format_profile(rows, {"ranks: 2"}, 25, {.layers = true, .top = 1});
  EXPECT_NE(text.find("ranks: 2"), std::string::npos);
  EXPECT_NE(
      text.find("h.11                              3000   30.0%     30.000   30.0%       2.00       4.00   "
                "30.0%     5.000"),
      std::string::npos)
      << text;
  EXPECT_NE(
      text.find(
          "most parameters: h.* (6000)\nmost arithmetic: h.* (60.000 GFLOP)\nmost time: h.* (12.00 ms)"),
      std::string::npos)
      << text;
  const std::string whole = format_profile(rows, {}, 25, {.layers = false, .top = 0});
  EXPECT_EQ(whole.find("h.11"), std::string::npos);
  EXPECT_EQ(whole.find("most"), std::string::npos);
  EXPECT_NE(whole.find("all layers"), std::string::npos);
}

}  // namespace
}  // namespace cleave::monitor
