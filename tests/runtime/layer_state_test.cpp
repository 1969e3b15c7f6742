// What layers remember from step to step, and losses of their own: the same in every layout.
#include <gtest/gtest.h>

#include <cmath>

#include "model/check_gradients.h"
#include "tests/runtime/cut_models.h"
#include "tests/runtime/watch.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int64_t kBatch = 8;

// One watch sees the data as they are, the other what is trained.
model::Model watched(DType dtype = DType::fp32, float weight = 0.3f) {
  model::Model m = model::make_mlp({{3, 8, 8, 4}}, dtype, "watched");
  m.layers.insert(m.layers.begin() + 1, std::make_unique<Watch>("inner", weight));
  m.layers.insert(m.layers.begin(), std::make_unique<Watch>("outer"));
  return m;
}

// Rows of a step; the largest value of all is of one row, which step 1 has.
std::vector<float> features(int64_t step) {
  std::vector<float> x(size_t(kBatch * 3));
  const Philox random{5, uint64_t(step)};
  for (size_t i = 0; i < x.size(); ++i) x[i] = float(random.word(i) % 1000) / 1000 - 0.5f;
  if (step == 1) x[size_t(3 * 5 + 1)] = -2.5f;
  return x;
}

struct Data {
  std::vector<float> x;
  std::vector<uint16_t> half;
  std::vector<int32_t> y;
  BatchSource of(int64_t step, const config::DsConfig& c, int rank, int ranks, DType dtype = DType::fp32) {
    x = features(step);
    return [this, &c, rank, ranks, dtype](int micro) {
      const int64_t n = c.train_micro_batch_size_per_gpu, first = (int64_t(micro) * ranks + rank) * n;
      y.clear(), half.clear();
      for (int64_t i = first; i < first + n; ++i)
        y.push_back(int32_t(x[size_t(3 * i)] > 0 ? i % 2 : 2 + i % 2));
      Tensor input(x.data() + 3 * first, DType::fp32, {n, 3}, MemoryKind::host);
      if (dtype == DType::fp16) {
        half.resize(size_t(3 * n));
        const Tensor to(half.data(), dtype, {n, 3}, MemoryKind::host);
        for (int64_t i = 0; i < 3 * n; ++i) to.as<fp16>()[i] = from_float<fp16>(input.as<float>()[i]);
        input = to;
      }
      return Batch{.input = input,
                   .targets = Tensor(y.data(), DType::int32, {n}, MemoryKind::host),
                   .valid_targets = n};
    };
  }
};

struct Ranks {
  int ranks = 1, stage = 0, pipe = 1;
  int64_t micro_batch = kBatch;
  int64_t recompute = 0;
  std::string schedule = "1f1b";
};

config::DsConfig watching(const Ranks& l) {
  const int data = l.ranks / l.pipe;
  config::DsConfig c = config_for(data, l.micro_batch, kBatch / (l.micro_batch * data));
  c.zero.stage = l.stage;
  c.pipeline.stages = l.pipe, c.pipeline.schedule = l.schedule;
  c.checkpointing.interval = l.recompute;
  c.optimizer.type = config::OptimizerType::sgd, c.optimizer.lr = 0.1;
  return c;
}

struct Seen {
  float outer = 0, inner = 0;
  std::vector<float> rows;
  std::vector<double> losses;
  double evaluated = 0;
  Weights weights;
};

// Steps [begin, end) from a checkpoint of `from`, where there is one, and saved to `to`.
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

std::string words_of(const Ranks& l) {
  return fmt::format("{} ranks, stage {}, pipe {}, micro-batch {}, recompute {}, {}", l.ranks, l.stage,
                     l.pipe, l.micro_batch, l.recompute, l.schedule);
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

// Behind the embedding of a transformer: where a sequence is cut, rows are, and over a tensor axis, they may
// be.
TEST(LayerStates, SeeTheRowsOfAllRanksOnceAlsoWhereASequenceOrATensorAxisCutsThem) {
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

// Finite differences of the loss that is reported, of a bias before the watch, against a step of plain
// descent.
TEST(SideLosses, AreReportedAndDescended) {
  config::DsConfig c = watching({});
  c.optimizer.lr = 1, c.optimizer.weight_decay = 0, c.gradient_clipping = 0;
  const auto alone = comm::self_communicator();
  runtime::Engine engine(c, watched(), *alone, {}), silent(c, watched(DType::fp32, 0), *alone, {});
  Data data;
  const std::string name = watched().layers[1]->units().at(0).params.back().name;
  const std::vector<float> first = engine.parameter(name);
  const auto loss_at = [&](float more) {
    engine.set_parameters([&](const ParamSpec& p) {
      std::vector<float> values = engine.parameter(p.name);
      if (p.name == name) values = first, values[2] += more;
      return values;
    });
    return engine.evaluate(data.of(0, c, 0, 1), 1).loss;
  };
  const float h = 0x1p-6f;
  const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
  const double evaluated = loss_at(0), trained = engine.train_batch(data.of(0, c, 0, 1)).loss;
  EXPECT_NEAR(trained, evaluated, 1e-6);
  EXPECT_GT(trained, silent.train_batch(data.of(0, c, 0, 1)).loss + 1e-3);
  const double went = first[2] - engine.parameter(name)[2], without = first[2] - silent.parameter(name)[2];
  EXPECT_NEAR(went, slope, 2e-3 * std::abs(slope) + 1e-4);
  EXPECT_GT(std::abs(went - without), 1e-2) << "the side loss does not matter here";
}

TEST(SideLosses, AreInTheCheckOfALayersGradients) {
  const model::TensorSpec rows{DType::fp32, {4, 5}};
  model::check_gradients(Watch("right", 0.7f), rows);
  // Its gradient is that of another weight than its loss has.
  class Wrong final : public model::Layer {
   public:
    std::vector<UnitSpec> units() const override { return {}; }
    model::TensorSpec output(const model::TensorSpec& in) const override { return in; }
    std::vector<model::LayerState> states() const override { return watch_.states(); }
    bool has_side_loss() const override { return true; }
    void forward(const model::ForwardArgs& a) const override { watch_.forward(a); }
    void backward(const model::BackwardArgs& a) const override { Watch("less", 0.5f).backward(a); }
    Watch watch_{"wrong", 0.7f};
  };
  expect_error(Exit::internal, {"backward gives"}, [&] { model::check_gradients(Wrong(), rows); });
}

TEST(SideLosses, AreToldTheLossScale) {
  std::vector<Weights> weights;
  for (const double scale : {1.0, 1024.0}) {
    config::DsConfig c = watching({});
    c.precision = config::Precision::fp16, c.fp16.enabled = true, c.fp16.loss_scale = scale;
    const auto alone = comm::self_communicator();
    runtime::Engine engine(c, watched(DType::fp16), *alone, {});
    Data data;
    for (int step = 0; step < 3; ++step) engine.train_batch(data.of(step, c, 0, 1, DType::fp16));
    weights.push_back(weights_of(engine));
  }
  for (const auto& [name, values] : weights[0])
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(weights[1].at(name)[i], values[i], 2e-3) << name;
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
  EXPECT_LT(engine.layer_state("outer.largest")[0], 0.6f) << "what the skipped step saw is forgotten";
  EXPECT_GT(engine.layer_state("outer.largest")[0], 0.3f);
}

TEST(LayerStates, AreInACheckpointThatIsWrittenBehindTheTraining) {
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
  expect_error(Exit::usage, {"no layer of watched has a state other"}, [&] { engine.layer_state("other"); });
}

}  // namespace
}  // namespace cleave::testing
