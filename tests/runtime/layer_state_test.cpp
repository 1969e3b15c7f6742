// State that layers keep between steps: equal in every layout.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/watched.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

struct Seen {
  float outer = 0, inner = 0;
  std::vector<float> rows;
  std::vector<double> losses;
  double evaluated = 0;
  Weights weights;
};

// Runs steps [begin, end) from the checkpoint `from`, if given, and saves to `to`.
Seen run(const Ranks& l, int begin, int end, const std::string& from = "", const std::string& to = "") {
  Seen out;
  comm::run_ranks(l.ranks, [&](comm::Communicator& world) {
    const config::DsConfig c = watching(l);
    runtime::Engine engine(c, watched(), world, {});
    if (!from.empty()) engine.load_checkpoint(from);
    const int place = engine.mesh().place(world.rank()).data, ranks = engine.mesh().data;
    Data data;
    Seen mine;
    for (int step = begin; step < end; ++step)
      mine.losses.push_back(engine.train_batch(data.of(step, c, place, ranks)).loss);
    mine.evaluated = engine.evaluate(data.of(9, c, place, ranks), int(c.gradient_accumulation_steps)).loss;
    mine.outer = engine.layer_state("outer.largest")[0], mine.inner = engine.layer_state("inner.largest")[0];
    mine.rows = engine.layer_state("outer.rows");
    mine.weights = weights_of(engine);
    if (!to.empty()) engine.save_checkpoint(to, "now");
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

void expect_near(const Seen& got, const Seen& want) {
  EXPECT_NEAR(got.inner, want.inner, 2e-6);
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < got.losses.size(); ++i) EXPECT_NEAR(got.losses[i], want.losses[i], 2e-6) << i;
  EXPECT_NEAR(got.evaluated, want.evaluated, 2e-6);
  for (const auto& [name, values] : want.weights)
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(got.weights.at(name)[i], values[i], 2e-6) << name << " " << i;
}

std::vector<Ranks> layouts() {
  std::vector<Ranks> out;
  for (int stage : {0, 1, 2, 3})
    for (int ranks : {1, 2, 4})
      for (int64_t micro : {1, 2}) out.push_back({ranks, stage, 1, micro});
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"})
    for (int stage : {1, 2})
      out.push_back({2, stage, 2, 2, 0, schedule}), out.push_back({4, stage, 2, 1, 0, schedule});
  out.push_back({1, 0, 1, 2, 1}), out.push_back({2, 3, 1, 1, 2}), out.push_back({2, 1, 2, 2, 1});
  out.push_back({4, 0, 4, 1});
  return out;
}

TEST(LayerStates, AreTheSameInEveryLayoutAndSoIsWhatSideLossesTeach) {
  const Seen alone = run({}, 0, 3);
  for (const Ranks& l : layouts()) {
    SCOPED_TRACE(words_of(l));
    const Seen got = run(l, 0, 3);
    EXPECT_EQ(got.outer, 2.5f) << "the largest value of the data";
    EXPECT_EQ(got.rows, (std::vector<float>{float(kBatch), float(kBatch / l.micro_batch)}))
        << "rows of the last step, once, and how often the layer was asked";
    expect_near(got, alone);
  }
}

TEST(LayerStates, GoWithACheckpointIntoAnyLayout) {
  const Seen whole = run({}, 0, 4);
  for (const Ranks& from : {Ranks{2, 2, 1, 1}, Ranks{2, 1, 2, 2}, Ranks{1, 0, 1, 8}})
    for (const Ranks& to : {Ranks{1, 0, 1, 4}, Ranks{4, 3, 1, 1}, Ranks{4, 1, 4, 1}, Ranks{4, 2, 2, 2}}) {
      SCOPED_TRACE(words_of(from) + " to " + words_of(to));
      Scratch scratch;
      run(from, 0, 2, "", scratch.path("run"));
      const Seen resumed = run(to, 2, 2, scratch.path("run"));
      EXPECT_EQ(resumed.outer, 2.5f) << "saved, before any step";
      EXPECT_EQ(resumed.rows, (std::vector<float>{-1, -1})) << "not saved, so as it begins";
      const Seen got = run(to, 2, 4, scratch.path("run"));
      EXPECT_EQ(got.outer, 2.5f);
      EXPECT_NEAR(got.inner, whole.inner, 2e-6);
      for (const auto& [name, values] : whole.weights)
        for (size_t i = 0; i < values.size(); ++i)
          EXPECT_NEAR(got.weights.at(name)[i], values[i], 2e-6) << name << " " << i;
    }
}

// After the embedding of a transformer: a cut sequence cuts rows, and a tensor axis may cut them as well.
TEST(LayerStates, SeeTheRowsOfAllRanksOnceWithSequenceAndTensorAxes) {
  const auto trained = [](const Layout& l) {
    Seen out;
    comm::run_ranks(l.ranks(), [&](comm::Communicator& world) {
      const config::DsConfig c = config_of(l, 4 / l.data);
      const runtime::ModelFactory make = [](const model::Axes& axes) {
        model::Model m = cut_gpt(true)(axes);
        m.layers.insert(m.layers.begin() + 1, std::make_unique<Watch>("outer", 0.3f));
        return m;
      };
      runtime::Engine engine(c, make, world, {});
      Seen mine;
      for (const runtime::StepResult& r : train(engine, world, 2, kTokens).steps)
        mine.losses.push_back(r.loss);
      mine.rows = engine.layer_state("outer.rows"), mine.outer = engine.layer_state("outer.largest")[0];
      if (world.rank() == 0) out = std::move(mine);
    });
    return out;
  };
  const Seen alone = trained({});
  EXPECT_EQ(alone.rows[0], 4 * kTokens);
  for (const Layout& l :
       {Layout{.data = 2, .zero = 3}, Layout{.sequence = 2}, Layout{.tensor = 2},
        Layout{.tensor = 2, .cut_rows = false}, Layout{.pipe = 2, .tensor = 2},
        Layout{.data = 2, .tensor = 2, .zero = 2}, Layout{.data = 2, .zero = 1, .sequence = 2}}) {
    SCOPED_TRACE(l.text());
    const Seen got = trained(l);
    EXPECT_EQ(got.rows[0], 4 * kTokens);
    EXPECT_NEAR(got.outer, alone.outer, 2e-6);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(got.losses[i], alone.losses[i], 1e-5) << i;
  }
}

TEST(LayerStates, OfAStepThatOverflowedAreNotJoined) {
  config::DsConfig c = watching({});
  c.precision = config::Precision::fp16, c.fp16.enabled = true;
  c.fp16.initial_scale_power = 30, c.fp16.hysteresis = 1;
  const auto alone = comm::self_communicator();
  runtime::Engine engine(c, watched(DType::fp16), *alone, {});
  Data data;
  ASSERT_TRUE(engine.train_batch(data.of(1, c, 0, 1, DType::fp16)).skipped);
  EXPECT_EQ(engine.layer_state("outer.largest"), (std::vector<float>{0}));
  EXPECT_EQ(engine.layer_state("outer.rows"), (std::vector<float>{-1, -1}));
  int step = 0;
  while (engine.train_batch(data.of(0, c, 0, 1, DType::fp16)).skipped) ASSERT_LT(++step, 40);
  EXPECT_LT(engine.layer_state("outer.largest")[0], 0.6f) << "a skipped step leaves no trace";
  EXPECT_GT(engine.layer_state("outer.largest")[0], 0.3f);
}

TEST(LayerStates, AreInBackgroundCheckpoints) {
  config::DsConfig c = watching({});
  c.checkpoint.async = true;
  const auto alone = comm::self_communicator();
  Scratch scratch;
  Data data;
  runtime::Engine engine(c, watched(), *alone, {}), later(c, watched(), *alone, {});
  engine.train_batch(data.of(1, c, 0, 1));
  engine.save_checkpoint(scratch.path("run"), "now");
  engine.finish_save();
  later.load_checkpoint(scratch.path("run"));
  EXPECT_EQ(later.layer_state("outer.largest"), (std::vector<float>{2.5f}));
  EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
}

TEST(LayerStates, AreCountedByThePlanAndNamedOnce) {
  const auto alone = comm::self_communicator();
  const config::DsConfig c = watching({});
  runtime::Engine engine(c, watched(), *alone, {});
  EXPECT_EQ(engine.memory_planned().at(MemoryKind::device, Category::layer_state), 2 * 2 * (1 + 2) * 4)
      << "two layers, two parts, one and two elements";
  model::Model twice = watched();
  twice.layers.push_back(std::make_unique<Watch>("outer"));
  expect_error(Exit::usage, {"outer.largest", "watched"},
               [&] { runtime::Engine(c, std::move(twice), *alone, {}); });
  expect_error(Exit::usage, {"watched: no layer has a state other"}, [&] { engine.layer_state("other"); });
}

}  // namespace
}  // namespace cleave::testing
