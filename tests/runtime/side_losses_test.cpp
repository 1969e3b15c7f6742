// Side losses of layers: reporting, gradients and averaging.
#include <gtest/gtest.h>

#include <cmath>

#include "model/check_gradients.h"
#include "tests/runtime/watched.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// Compares finite differences of the reported loss, for a bias before the watch, with a step of plain
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
  // Uses another weight in its gradient than in its loss.
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

struct Taught {
  std::vector<double> losses;
  Weights weights;
};

Taught taught(const config::DsConfig& c, int ranks, int steps, const std::set<int64_t>& hidden, float inner,
              float outer) {
  Taught out;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    runtime::Engine engine(c, watched(DType::fp32, inner, outer), world, {});
    const int place = engine.mesh().place(world.rank()).data;
    Data data{.x = {}, .half = {}, .y = {}, .hidden = hidden};
    Taught mine;
    for (int step = 0; step < steps; ++step)
      mine.losses.push_back(engine.train_batch(data.of(step, c, place, engine.mesh().data)).loss);
    mine.weights = weights_of(engine);
    EXPECT_EQ(engine.memory_planned(), engine.memory_peak());
    if (world.rank() == 0) out = std::move(mine);
  });
  return out;
}

std::vector<Ranks> layouts_of(int64_t micro) {
  std::vector<Ranks> out;
  for (int stage : {0, 1, 2, 3}) out.push_back({2, stage, 1, micro}), out.push_back({4, stage, 1, micro});
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"})
    out.push_back({2, 1, 2, micro, 0, schedule}), out.push_back({4, 2, 2, micro, 0, schedule});
  out.push_back({4, 0, 4, micro}), out.push_back({2, 3, 1, micro, 1});
  return out;
}

config::DsConfig averaged(const Ranks& l, config::LossAverage average, bool exact) {
  config::DsConfig c = watching(l);
  c.loss_average = average, c.exact_sums = exact;
  return c;
}

// Micro-batches of two samples have 2, 1, 0 and 1 targets.
const std::set<int64_t> kHidden = {2, 4, 5, 7};

TEST(SideLosses, HaveTheBitsOfOneRankInEveryLayoutWithExactSums) {
  for (const auto average : {config::LossAverage::targets, config::LossAverage::micro_batches})
    for (const std::set<int64_t>& hidden : {std::set<int64_t>{}, kHidden}) {
      const Taught alone = taught(averaged({1, 0, 1, 2}, average, true), 1, 4, hidden, 0.3f, 0.7f);
      for (const Ranks& l : layouts_of(2)) {
        SCOPED_TRACE(words_of(l));
        const Taught got = taught(averaged(l, average, true), l.ranks, 4, hidden, 0.3f, 0.7f);
        EXPECT_EQ(got.losses, alone.losses);
        EXPECT_EQ(got.weights, alone.weights);
      }
    }
}

// The outer layer sees the raw data, and the lasting state is empty before the first step: its loss is weight
// / 2 times the sum of squares. The target losses are added before everything is divided.
TEST(SideLosses, AreDividedByTheTargetsOfTheBatchOrOfTheirOwnMicroBatch) {
  constexpr float kWeight = 0.7f;
  const std::vector<float> x = features(0);
  double of_batch = 0, of_micros = 0;
  for (int micro = 0; micro < 4; ++micro) {
    double squares = 0;
    for (int i = 0; i < 6; ++i) squares += double(x[size_t(6 * micro + i)]) * x[size_t(6 * micro + i)];
    const int targets = 2 - int(kHidden.count(2 * micro) + kHidden.count(2 * micro + 1));
    of_batch += kWeight / 2 * squares / (8 - double(kHidden.size()));
    if (targets > 0) of_micros += kWeight / 2 * squares / targets / 4;
  }
  EXPECT_GT(std::abs(of_batch - of_micros), 1e-2) << "the two averages do not differ here";
  for (const auto& [average, want] : {std::pair{config::LossAverage::targets, of_batch},
                                      std::pair{config::LossAverage::micro_batches, of_micros}})
    for (const bool exact : {false, true})
      for (const Ranks& l : layouts_of(2)) {
        SCOPED_TRACE(words_of(l) + (exact ? ", exact sums" : ""));
        const config::DsConfig c = averaged(l, average, exact);
        const double with = taught(c, l.ranks, 1, kHidden, 0, kWeight).losses[0],
                     without = taught(c, l.ranks, 1, kHidden, 0, 0).losses[0];
        EXPECT_NEAR(with - without, want, 1e-6);
      }
}

// Compares finite differences of the reported loss, for a bias before the layer, with a step of plain
// descent.
TEST(SideLosses, HaveGradientsOfTheReportedLossForEveryAverage) {
  const std::string name = watched().layers[1]->units().at(0).params.back().name;
  for (const auto average : {config::LossAverage::targets, config::LossAverage::micro_batches})
    for (const bool exact : {false, true})
      for (const Ranks& l : {Ranks{1, 0, 1, 2}, Ranks{2, 2, 1, 2}, Ranks{2, 1, 2, 2, 0, "zb-h1"}}) {
        SCOPED_TRACE(words_of(l) + (exact ? ", exact sums" : ""));
        config::DsConfig c = averaged(l, average, exact);
        c.optimizer.lr = 1, c.optimizer.weight_decay = 0, c.gradient_clipping = 0;
        // Returns the reported loss of a step from a changed bias, and the bias after the step.
        const auto step_at = [&](float more) {
          std::pair<double, double> out;
          comm::run_ranks(l.ranks, [&](comm::Communicator& world) {
            runtime::Engine engine(c, watched(DType::fp32, 0.9f), world, {});
            std::map<std::string, std::vector<float>> first;
            for (const auto& [p, values] : weights_of(engine)) first[p] = values;
            first[name][2] += more;
            engine.set_parameters([&](const ParamSpec& p) { return first.at(p.name); });
            Data data{.x = {}, .half = {}, .y = {}, .hidden = kHidden};
            const int place = engine.mesh().place(world.rank()).data;
            const double loss = engine.train_batch(data.of(0, c, place, engine.mesh().data)).loss;
            const double went = first[name][2] - engine.parameter(name)[2];
            if (world.rank() == 0) out = {loss, went};
          });
          return out;
        };
        const float h = 0x1p-6f;
        const double slope = (step_at(h).first - step_at(-h).first) / (2 * h);
        EXPECT_NEAR(step_at(0).second, slope, 2e-3 * std::abs(slope) + 1e-4);
      }
}

}  // namespace
}  // namespace cleave::testing
