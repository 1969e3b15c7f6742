// What a traced step says about itself.
#include "device/trace.h"

#include <nlohmann/json.hpp>

#include "comm/traced.h"
#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

DsConfig pipelined(const char* schedule, bool overlap) {
  DsConfig c = config_for(1, 1, 4);
  c.pipeline.stages = 2, c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = std::string_view(schedule) == "interleaved" ? 2 : 1;
  c.zero.overlap_comm = overlap;
  return c;
}

TEST(Trace, OfARankIsItsSchedule) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (const bool overlap : {false, true}) {
      const DsConfig c = pipelined(schedule, overlap);
      const Schedule want = make_schedule(schedule, {2, 4, c.pipeline.virtual_stages});
      std::vector<std::deque<TraceEvent>> events(2);
      run_ranks(2, [&](Communicator& world) {
        Trace trace;
        Engine engine(c, deep_gpt(false), world, {.compute = Stream::Mode::worker, .trace = &trace});
        Tokens tokens(1);
        engine.train_batch(source(tokens, c, 0, 0, 1));
        events[size_t(world.rank())] = trace.events();
      });
      std::map<std::pair<int, int>, double> sent;  // micro-batch, chunk: of the first rank's forward
      for (size_t rank = 0; rank < 2; ++rank) {
        InstructionList got;
        double compute_ends = 0;
        for (const TraceEvent& e : events[rank]) {
          EXPECT_LE(e.begin_us, e.end_us) << e.name;
          if (std::string_view(e.category) != "pipeline") continue;
          const size_t n = got.size();
          ASSERT_LT(n, want.ranks[rank].size());
          EXPECT_EQ(e.name, name_of(want.ranks[rank][n].op));
          got.push_back({want.ranks[rank][n].op, e.micro, e.chunk});
          if (e.name.starts_with("forward") || e.name.starts_with("backward")) {
            EXPECT_GE(e.begin_us, compute_ends) << "computations of a rank overlap";
            compute_ends = e.end_us;
          }
          if (rank == 0 && e.name == "forward") sent[{e.micro, e.chunk}] = e.end_us;
          if (rank == 1 && e.name == "forward") {
            EXPECT_GE(e.begin_us, (sent[{e.micro, e.chunk}]));
          }
        }
        EXPECT_EQ(got, want.ranks[rank]) << schedule << " rank " << rank;
        EXPECT_EQ(events[rank].back().name, "update");
      }
    }
}

TEST(Trace, ChangesNoBitAndCountsTheSameBytes) {
  for (const int stage : {0, 3}) {
    DsConfig c = pipelined("1f1b", true);
    c.zero.stage = stage;
    const auto run = [&](bool traced) {
      std::pair<Training, CommBytes> first;
      run_ranks(4, [&](Communicator& world) {
        Trace trace;
        auto seen = traced_communicator(world, trace);
        Engine engine(c, deep_gpt(true), traced ? *seen : world, {.trace = traced ? &trace : nullptr});
        Training mine = train(engine, world, 2);
        const bool sends = std::any_of(trace.events().begin(), trace.events().end(), [](const TraceEvent& e) {
          return std::string_view(e.category) == "collective" &&
                 e.name.starts_with("send of pipe activations");
        });
        EXPECT_EQ(sends, traced && world.rank() < 2);
        if (world.rank() == 0) first = {std::move(mine), engine.comm_bytes()};
      });
      return first;
    };
    const auto want = run(false), got = run(true);
    EXPECT_EQ(got.first.weights, want.first.weights);
    EXPECT_EQ(got.first.steps.back().loss, want.first.steps.back().loss);
    EXPECT_EQ(got.second, want.second);
  }
}

TEST(Trace, WritesTraceEventsOfTheFirstSteps) {
  const Scratch folder;
  {
    Trace trace(folder.path("t.json"), 3, 2);
    Stream work(Stream::Mode::worker);
    trace.name(work, "a \"track\"");
    for (int step = 0; step < 3; ++step) {
      { const TraceSpan span(&trace, work, "pipeline", "forward", step, 1); }
      { const TraceSpan span(&trace, work, "step", "update"); }
      work.synchronize();
      trace.end_step();
    }
    EXPECT_FALSE(trace.on());
    EXPECT_TRUE(trace.events().empty());
  }
  const auto events = nlohmann::json::parse(folder.read("t.json"));
  ASSERT_EQ(events.size(), 2u + 4u);
  EXPECT_EQ(events[1]["args"]["name"], "a \"track\"");
  EXPECT_EQ(events[4]["name"], "forward");
  EXPECT_EQ(events[4]["ph"], "X");
  EXPECT_EQ(events[4]["pid"], 3);
  EXPECT_EQ(events[4]["tid"], 1);
  EXPECT_EQ(events[4]["args"]["micro"], 1);
  EXPECT_GE(events[4]["dur"], 0.0);
  expect_error(Exit::usage, {"--trace: cannot write", "/nowhere/t.json"},
               [] { Trace("/nowhere/t.json", 0, 1); });
}

}  // namespace
}  // namespace cleave::testing
