// Trace of a step.
#include "device/trace.h"

#include <nlohmann/json.hpp>

#include <atomic>
#include <thread>

#include "comm/traced.h"
#include "pipeline/schedule.h"
#include "tests/runtime/homes.h"
#include "zero/flat_layout.h"

namespace cleave::testing {
namespace {

config::DsConfig pipelined(const char* schedule, bool overlap) {
  config::DsConfig c = config_for(1, 1, 4);
  c.pipeline.stages = 2, c.pipeline.schedule = schedule;
  c.pipeline.virtual_stages = std::string_view(schedule) == "interleaved" ? 2 : 1;
  c.zero.overlap_comm = overlap;
  return c;
}

TEST(Trace, OfARankIsItsSchedule) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"})
    for (const bool overlap : {false, true}) {
      const config::DsConfig c = pipelined(schedule, overlap);
      const pipeline::Schedule want = pipeline::make_schedule(schedule, {2, 4, c.pipeline.virtual_stages});
      std::vector<std::deque<TraceEvent>> events(2);
      comm::run_ranks(2, [&](comm::Communicator& world) {
        Trace trace;
        runtime::Engine engine(c, deep_gpt(false), world, {.compute = Stream::Mode::worker, .trace = &trace});
        Tokens tokens(1);
        engine.train_batch(source(tokens, c, 0, 0, 1));
        events[size_t(world.rank())] = trace.events();
      });
      std::map<std::pair<int, int>, double> sent;  // micro-batch, chunk: in the first rank's forward
      for (size_t rank = 0; rank < 2; ++rank) {
        pipeline::InstructionList got;
        double compute_ends = 0;
        for (const TraceEvent& e : events[rank]) {
          EXPECT_LE(e.begin_us, e.end_us) << e.name;
          if (std::string_view(e.category) != "pipeline") continue;
          const size_t n = got.size();
          ASSERT_LT(n, want.ranks[rank].size());
          EXPECT_EQ(e.name, pipeline::name_of(want.ranks[rank][n].op));
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
        const auto update = std::find_if(events[rank].begin(), events[rank].end(), [](const TraceEvent& e) {
          return std::string_view(e.category) == "step" && e.name == "update";
        });
        ASSERT_NE(update, events[rank].end());
        EXPECT_TRUE(std::none_of(update, events[rank].end(), [](const TraceEvent& e) {
          return std::string_view(e.category) == "pipeline";
        })) << "the update is the last of a step";
      }
    }
}

TEST(Trace, ChangesNoBitAndCountsTheSameBytes) {
  for (const int stage : {0, 3}) {
    config::DsConfig c = pipelined("1f1b", true);
    c.zero.stage = stage;
    const auto run = [&](bool traced) {
      std::pair<Training, comm::CommBytes> first;
      comm::run_ranks(4, [&](comm::Communicator& world) {
        Trace trace;
        auto seen = comm::traced_communicator(world, trace);
        runtime::Engine engine(c, deep_gpt(true), traced ? *seen : world,
                               {.trace = traced ? &trace : nullptr});
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

// Returns the number of spans per track in a step of two ranks.
std::map<std::string, int> spans_of_a_step(const config::DsConfig& c) {
  std::map<std::string, int> counts;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Trace trace;
    {
      runtime::Engine engine(c, deep_gpt(false), world, {.compute = Stream::Mode::worker, .trace = &trace});
      Tokens tokens(1);
      engine.train_batch(source(tokens, c, 0, world.rank(), 2));
    }  // background writes of the step are done
    for (const TraceEvent& e : trace.events()) {
      EXPECT_LT(0, e.begin_us);
      EXPECT_LE(e.begin_us, e.end_us) << e.name;
      if (world.rank() == 0) ++counts[trace.track_of(e)];
    }
  });
  return counts;
}

// Tiles of the first of two ranks: each unit's slice, cut every `tile` elements.
int tiles(int64_t tile) {
  int count = 0;
  const model::Model model = deep_gpt(false);
  for (const UnitSpec& u : model.units()) count += int(ceil_div(zero::FlatLayout(u, 2).numel() / 2, tile));
  return count;
}

TEST(Trace, ShowsOffloadAndDisks) {
  for (const bool overlap : {false, true})
    for (const double clipping : {0.0, 1.0}) {
      config::DsConfig c =
          with(config_for(2), {.parameters = true, .optimizer = true, .state_on_disk = true});
      c.zero.stage = 3, c.zero.overlap_comm = overlap, c.gradient_clipping = clipping;
      c.checkpointing.interval = 1, c.checkpointing.to_host = true;
      const model::Model model = deep_gpt(false);
      const int units = int(model.units().size()), layers = int(model.layers.size());
      // Every unit for the forward and again for the backward, except for the head's, which is gathered once.
      const int gathers = 2 * units - 1, want = tiles(c.zero.sub_group_size);
      auto got = spans_of_a_step(c);
      EXPECT_GT(want, units);  // some units have several tiles
      EXPECT_EQ(got["state read from disk"], want);
      EXPECT_EQ(got["state written to disk"], want);
      EXPECT_EQ(got["host updates"], want);
      EXPECT_EQ(got["gradients home"], units);
      EXPECT_EQ(got["weights from home"], gathers);
      // Every layer's input but the first leaves; all of these but the last, which is still in memory, come
      // back.
      EXPECT_EQ(got["kept inputs"], layers - 1 + layers - 2);
      EXPECT_EQ(got.count("weights read from disk"), 0u);
      c = with(c, {.parameters = true, .optimizer = true, .disk = true});
      got = spans_of_a_step(c);
      // Plus one per buffer, for the next step.
      EXPECT_EQ(got["weights read from disk"], gathers + c.zero.offload_param.buffer_count);
      EXPECT_EQ(got["weights from home"], gathers);
      EXPECT_EQ(got["weights written to disk"], units);
    }
}

TEST(Trace, OfAStepWithoutOffloadHasNoSuchTracks) {
  for (const auto& [track, count] : spans_of_a_step(config_for(2)))
    EXPECT_TRUE(track == "compute" || track == "communication") << track << " " << count;
}

TEST(Trace, WritesLateEventsAndUsesTheFirstRanksClock) {
  const Scratch folder;
  double begin = 0;
  {
    Trace late(folder.path("t.json"), 1, 1, 5e12);
    Stream work(Stream::Mode::worker);
    late.name(work, "work"), late.name(work, "disk", "disk");
    std::atomic<bool> open = false;
    { const TraceSpan span(&late, work, "step", "before"); }
    work.synchronize();
    {
      const TraceSpan span(&late, work, "disk", "behind");
      work.enqueue([&] {
        while (!open) std::this_thread::yield();
      });
    }
    late.end_step();
    EXPECT_EQ(late.events().size(), 1u);
    EXPECT_EQ(folder.read("t.json").find("behind"), std::string::npos);
    EXPECT_NE(folder.read("t.json").find("before"), std::string::npos);
    open = true;
    work.synchronize();
    begin = late.events()[0].begin_us;
  }
  const auto events = nlohmann::json::parse(folder.read("t.json"));
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["args"]["clock_us"], 5e12);
  EXPECT_EQ(events[3]["args"]["name"], "disk");
  EXPECT_EQ(events[4]["name"], "behind");
  EXPECT_NEAR(events[4]["ts"].get<double>(), begin + 5e12, 0.11);  // one decimal digit
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
