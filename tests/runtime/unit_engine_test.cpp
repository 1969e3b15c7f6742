// Externally driven engine against one that runs its layers: equal bits for every order of visits.
#include "runtime/unit_engine.h"

#include <atomic>

#include "tests/runtime/compare.h"
#include "tests/runtime/homes.h"
#include "tests/runtime/outside.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

constexpr int kGives = 2;  // for a tied unit

// This rank's results of a training with random extra uses on each rank.
Training outside(comm::Communicator& world, const config::DsConfig& c, const model::Model& model, int steps,
                 uint32_t seed, const runtime::EngineOptions& options = {}) {
  runtime::UnitEngine engine(c, model.name, model.units(), world, {.engine = options, .gives = kGives});
  const int64_t samples = c.train_micro_batch_size_per_gpu;
  OutsideLoop loop(model, engine, samples, {.random = std::mt19937(seed * 64 + uint32_t(world.rank()))});
  Tokens tokens(samples);
  Training run;
  for (int step = 0; step < steps; ++step)
    run.steps.push_back(
        loop.step(source(tokens, c, step, world.rank(), world.size()), int(c.gradient_accumulation_steps)));
  run.weights = weights_of(engine, model);
  EXPECT_EQ(engine.memory_live(), engine.memory_planned()) << "the plan equals the allocated memory";
  return run;
}

Training outside_on(int ranks, const config::DsConfig& c, const std::function<model::Model()>& model,
                    int steps, uint32_t seed, const runtime::EngineOptions& options = {}) {
  Training run;
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    Training mine = outside(world, c, model(), steps, seed, options);
    if (world.rank() == 0) run = std::move(mine);
  });
  return run;
}

class UnitEngines : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, UnitEngines, ::testing::Values(1, 2, 3, 4));

TEST_P(UnitEngines, HaveTheBitsOfAnEngineThatKnowsTheOrder) {
  const int ranks = GetParam(), steps = 5;
  Sampled sampled(ranks);
  uint32_t seed = uint32_t(ranks);
  for (const auto precision : {config::Precision::fp32, config::Precision::bf16, config::Precision::fp16})
    for (const int stage : {0, 1, 2, 3})
      for (const int64_t accumulation : {int64_t{1}, int64_t{3}})
        for (const bool exact : {false, true}) {
          if (!sampled.next()) continue;
          config::DsConfig c = in_type(config_for(ranks, 2, accumulation), precision);
          c.zero.stage = stage, c.exact_sums = exact;
          c.gradient_clipping = accumulation > 1 ? 0.5 : 0;
          c.zero.overlap_comm = stage > 1;
          const auto model = [&] { return small_gpt(type_of(precision), 0.1f); };
          const Training want = train_on(ranks, c, model, steps);
          expect_same_bits(outside_on(ranks, c, model, steps, ++seed), want,
                           fmt::format("{} stage {} accumulation {} exact {}", name_of(type_of(precision)),
                                       stage, accumulation, exact));
        }
}

TEST_P(UnitEngines, HaveThemWhereverTheStateLives) {
  const int ranks = GetParam(), steps = 4;
  uint32_t seed = 100 + uint32_t(ranks);
  Sampled sampled(ranks);
  for (const Homes& homes : all_homes()) {
    if (!sampled.next()) continue;
    config::DsConfig c = with(config_for(ranks, 1, 2), homes);
    c.zero.stage = 3;
    const auto model = [] { return small_qwen2(); };
    expect_same_bits(outside_on(ranks, c, model, steps, ++seed, kWorkers),
                     train_on(ranks, c, model, steps, kWorkers), text_of(homes, c));
  }
}

// y = x + sum over k of s_k x w_k; the first columns of x select the branches of a row (1 or 0). A branch
// without rows may be left out: its parameters are then not read.
class Branches final : public model::Layer {
 public:
  static constexpr int64_t kBranches = 6, kWidth = 9;

  std::vector<UnitSpec> units() const override {
    std::vector<UnitSpec> units;
    for (int64_t k = 0; k < kBranches; ++k)
      units.push_back({fmt::format("branch.{}", k),
                       {{fmt::format("branch.{}.weight", k), {kWidth}, {Init::Kind::normal, 0.5f}, true}}});
    return units;
  }
  model::TensorSpec output(const model::TensorSpec& in) const override { return in; }
  void forward(const model::ForwardArgs& a) const override {
    a.stream.enqueue([y = a.y, x = a.x, w = std::vector<Tensor>(a.params.begin(), a.params.end())] {
      std::copy_n(x.as<float>(), x.numel(), y.as<float>());
      for (int64_t row = 0; row < x.shape()[0]; ++row)
        for (int64_t k = 0; k < kBranches; ++k)
          for (int64_t c = 0; takes(x, row, k) && c < kWidth; ++c)
            y.as<float>()[row * kWidth + c] += x.as<float>()[row * kWidth + c] * w[size_t(k)].as<float>()[c];
    });
  }
  void backward(const model::BackwardArgs& a) const override {
    for (int64_t k = 0; k < kBranches; ++k) {
      if (!a.grads[size_t(k)].wanted()) continue;
      const bool adds = a.grads[size_t(k)].accumulate();
      a.stream.enqueue([x = a.x, dy = a.dy, g = a.grads[size_t(k)].tensor, k, adds] {
        for (int64_t c = 0; c < kWidth; ++c) {
          float sum = 0;
          for (int64_t row = 0; row < x.shape()[0]; ++row)
            if (takes(x, row, k)) sum += x.as<float>()[row * kWidth + c] * dy.as<float>()[row * kWidth + c];
          g.as<float>()[c] = adds ? g.as<float>()[c] + sum : sum;
        }
      });
    }
  }
  static bool takes(const Tensor& x, int64_t row, int64_t k) { return x.as<float>()[row * kWidth + k] != 0; }
};

model::Model branches() {
  model::Model m;
  m.name = "branches";
  m.layers.push_back(std::make_unique<Branches>());
  m.head = std::make_unique<model::ClassifierHead>(model::ClassifierHead::Config{
      .unit = "head", .weight = "head.weight", .classes = 4, .width = Branches::kWidth});
  m.sample = {DType::fp32, {1, Branches::kWidth}};
  return m;
}

// Rows take few branches, so most micro-batches leave some out, different ones on every rank.
class Rows {
 public:
  explicit Rows(int64_t samples) : features_(size_t(samples * Branches::kWidth)), labels_(size_t(samples)) {}
  Batch at(int64_t step, int64_t first_sample) {
    const Philox random{5, 3};
    for (size_t i = 0; i < features_.size(); ++i) {
      const uint32_t word = random.word(uint64_t(step * 64 + first_sample) * 1000 + i) >> 8;  // 24 bits
      const bool branch = int64_t(i) % Branches::kWidth < Branches::kBranches;
      features_[i] = branch ? float(word % 4 == 0) : float(word) / float(1 << 24) - 0.5f;
    }
    for (size_t i = 0; i < labels_.size(); ++i)
      labels_[i] = int32_t(random.word(uint64_t(step * 64 + first_sample) * 1000 + 900 + i) % 4);
    return batch_of(features_, labels_);
  }

 private:
  std::vector<float> features_;
  std::vector<int32_t> labels_;
};

// Per pass: two rows of two samples.
BatchSource rows_of(Rows& rows, int step, const comm::Communicator& world) {
  return [&rows, step, rank = world.rank(), ranks = world.size()](int micro) {
    return rows.at(step, (int64_t(micro) * ranks + rank) * 2);
  };
}

// Trains both ways on every rank, which leaves out branches without rows; returns their number on this rank.
// `same`: requires equal bits.
int64_t compare_branches(comm::Communicator& world, const config::DsConfig& c, const Whims& whims, bool same,
                         const std::string& what) {
  const model::Model model = branches();
  Rows rows(2);
  int64_t left_out = 0;
  const auto skips = [&](const UnitSpec& unit, const Batch& batch) {
    if (!unit.name.starts_with("branch.")) return false;
    const Tensor x = batch.input.view({2, Branches::kWidth});
    const int64_t k = unit.name.back() - '0';
    const bool skip = !Branches::takes(x, 0, k) && !Branches::takes(x, 1, k);
    left_out += skip;
    return skip;
  };
  runtime::Engine planned(c, branches(), world, {});
  runtime::UnitEngine engine(c, model.name, model.units(), world, {.gives = kGives});
  OutsideLoop loop(model, engine, 2, whims, skips);
  for (int step = 0; step < 6; ++step) {
    const runtime::StepResult want = planned.train_batch(rows_of(rows, step, world));
    const runtime::StepResult got = loop.step(rows_of(rows, step, world), 2);
    EXPECT_NEAR(got.loss, want.loss, same ? 0 : 1e-6) << what << ", step " << step;
    EXPECT_NEAR(got.grad_norm, want.grad_norm, same ? 0 : 1e-6) << what << ", step " << step;
  }
  const bool equal = weights_of(engine, model) == weights_of(planned);
  EXPECT_TRUE(equal || !same) << what;
  return left_out;
}

// Ranks that give units in one common order add the same terms as a planned pass, and zeros for left-out
// units. If a rank departs from a record, its part of a sum may come later than those of others; then only
// integer sums are unique. At stage 3 a branch that no rank took in the previous pass is such a departure.
TEST_P(UnitEngines, MayLeaveOutUnitsThatOtherRanksUse) {
  const int ranks = GetParam();
  std::atomic<int64_t> left_out = 0;
  Sampled sampled(ranks);
  for (uint32_t seed = 1; seed <= 6; ++seed)
    for (const int stage : {0, 1, 2, 3})
      for (const bool exact : {false, true})
        for (const bool one_order : {false, true}) {
          if (!sampled.next()) continue;
          config::DsConfig c = config_for(ranks, 2, 2);
          c.zero.stage = stage, c.exact_sums = exact;
          comm::run_ranks(ranks, [&](comm::Communicator& world) {
            Whims whims{.random = std::mt19937(seed * 64 + (one_order ? 0 : uint32_t(world.rank()))),
                        .shuffles = 1};
            if (one_order) whims.looks = 0;
            left_out += compare_branches(
                world, c, whims, exact || ranks == 1 || (one_order && stage < 3),
                fmt::format("stage {}, exact {}, one order {}, seed {}", stage, exact, one_order, seed));
          });
        }
  EXPECT_GT(left_out, kSanitized ? 50 : 1000);
}

// Each loads checkpoints of the other: a checkpoint consists of units, independent of their computation.
TEST(UnitEngine, ExchangesCheckpointsWithALayerEngine) {
  const Scratch folder;
  config::DsConfig c = in_type(config_for(2, 2, 2), config::Precision::fp16);
  c.zero.stage = 2;
  const auto model = [] { return small_gpt(DType::fp16); };
  comm::run_ranks(2, [&](comm::Communicator& world) {
    Tokens tokens(2);
    const auto data = [&](int step) { return source(tokens, c, step, world.rank(), 2); };
    const model::Model layers = model();
    runtime::Engine whole(c, model(), world, {});
    runtime::UnitEngine outside(c, layers.name, layers.units(), world, {.gives = kGives});
    OutsideLoop loop(layers, outside, 2, {.random = std::mt19937(uint32_t(world.rank()))});
    for (int step = 0; step < 3; ++step) whole.train_batch(data(step));
    whole.save_checkpoint(folder.path("a"), "three");
    outside.load_checkpoint(folder.path("a"));
    for (int step = 3; step < 6; ++step) {
      const runtime::StepResult want = whole.train_batch(data(step)), got = loop.step(data(step), 2);
      EXPECT_EQ(got.loss, want.loss);
      EXPECT_EQ(got.loss_scale, want.loss_scale);
    }
    outside.save_checkpoint(folder.path("b"), "six");
    config::DsConfig other = c;
    other.zero.stage = 3;
    runtime::Engine again(other, model(), world, {});
    again.load_checkpoint(folder.path("b"));
    for (int step = 6; step < 8; ++step) whole.train_batch(data(step)), again.train_batch(data(step));
    EXPECT_EQ(weights_of(again), weights_of(whole));
  });
}

// After every rank has done its rounds, gathers follow the record without further communication.
TEST(UnitEngine, NeedsNoRoundsForRecordedVisits) {
  config::DsConfig c = config_for(2);
  c.zero.stage = 3;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const model::Model layers = small_gpt();
    runtime::UnitEngine engine(c, layers.name, layers.units(), world, {.gives = kGives});
    OutsideLoop loop(layers, engine, 1, {.looks = 0, .lingers = 0, .shuffles = 0});
    Tokens tokens(1);
    loop.step(source(tokens, c, 0, world.rank(), 2), 1);
    const int64_t first = engine.unforeseen();
    EXPECT_GT(first, 0);
    for (int step = 1; step < 4; ++step) loop.step(source(tokens, c, step, world.rank(), 2), 1);
    EXPECT_EQ(engine.unforeseen(), first);
  });
}

TEST(UnitEngine, ReadsParametersOutsideOfAStep) {
  config::DsConfig c = config_for(2);
  c.zero.stage = 3;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const model::Model layers = small_gpt();
    runtime::UnitEngine engine(c, layers.name, layers.units(), world, {.gives = kGives});
    engine.begin_pass(1, false);
    const std::vector<Tensor> params = engine.acquire(0);
    engine.stream().synchronize();
    const UnitSpec unit = layers.units()[0];
    const std::vector<float> here(params[0].as<float>(), params[0].as<float>() + params[0].numel());
    engine.release(0);
    engine.end_pass();
    EXPECT_EQ(here, engine.parameter(unit.params[0].name));
  });
}

TEST(UnitEngine, RejectsInvalidConfigurationsAndCallOrders) {
  const auto alone = comm::self_communicator();
  const model::Model layers = small_gpt();
  const auto make = [&](const config::DsConfig& c) {
    return runtime::UnitEngine(c, layers.name, layers.units(), *alone, {.gives = kGives});
  };
  config::DsConfig wrong = config_for(1);
  wrong.weight_decay_on = {"nothing.*"};
  expect_error(Exit::usage, {"weight_decay_on", "nothing.*"}, [&] { make(wrong); });
  wrong = config_for(1), wrong.freeze = {"*.bias"};
  expect_error(Exit::usage, {"cleave.freeze", "define frozen parameters themselves"}, [&] { make(wrong); });
  wrong = config_for(1);
  wrong.zero.quantized_weights = true, wrong.zero.stage = 3;
  expect_error(Exit::usage, {"zero_quantized_weights", "remove the key"}, [&] { make(wrong); });
  const auto with = [&](const std::vector<UnitSpec>& units, int gives) {
    return runtime::UnitEngine(config_for(1), "mine", units, *alone, {.gives = gives});
  };
  const UnitSpec one{"one", {{"weight", {4}, {}, false}}}, other{"other", {{"weight", {4}, {}, false}}};
  expect_error(Exit::usage, {"duplicate unit one"}, [&] { with({one, one}, 1); });
  expect_error(Exit::usage, {"duplicate parameter weight"}, [&] { with({one, other}, 1); });
  expect_error(Exit::internal, {"gives is 0"}, [&] { with({one}, 0); });
  config::DsConfig exact = config_for(1);
  exact.exact_sums = true;  // its integers have room for this number of gives
  runtime::UnitEngine engine = make(exact);
  expect_error(Exit::internal, {"no step was begun"}, [&] { engine.finish_step({}); });
  expect_error(Exit::internal, {"no pass was begun"}, [&] { engine.acquire(0); });
  engine.begin_step();
  expect_error(Exit::internal, {"step before has not ended"}, [&] { engine.begin_step(); });
  engine.begin_pass(0, true);
  expect_error(Exit::internal, {"unit 99 of"}, [&] { engine.acquire(99); });
  for (int i = 0; i < kGives; ++i) engine.gradients(0), engine.give(0);
  expect_error(Exit::usage, {"cleave.exact_sums", "expected at most 2, 2 per micro-batch"},
               [&] { engine.gradients(0); });
  expect_error(Exit::internal, {"a pass has not ended"}, [&] { engine.finish_step({}); });
}

}  // namespace
}  // namespace cleave::testing
