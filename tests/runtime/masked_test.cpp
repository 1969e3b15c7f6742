// Targets without a loss: the loss of a step is the mean over the targets of its whole batch, for every
// division into micro-batches and ranks, as in PyTorch for the undivided batch;
// tests/fixtures/make_masked_fixtures.py makes its numbers.
#include <random>

#include "checkpoint/safetensors.h"
#include "tests/runtime/compare.h"
#include "tests/runtime/cut_models.h"
#include "tests/runtime/transformers_weights.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

constexpr int64_t kSteps = 5, kBatch = 8, kLength = 16;

const checkpoint::SafetensorsFile& fixture() {
  static const checkpoint::SafetensorsFile file(FIXTURES "/gpt2_masked.safetensors");
  return file;
}

runtime::ModelFactory masked_gpt() {
  return [](const model::Axes& axes) {
    return model::make_model(model::kGpt2,
                             {.vocab = 61, .positions = kLength, .width = 24, .layers = 3, .heads = 4},
                             DType::fp32, kLength, "masked", axes);
  };
}

// The fixture's batches, sample by sample, in memory that each micro-batch overwrites.
class MaskedSamples {
 public:
  explicit MaskedSamples(int64_t samples,
                         std::vector<int32_t> targets = stored_values<int32_t>(fixture(), "targets"))
      : all_tokens_(stored_values<int32_t>(fixture(), "tokens")),
        all_targets_(std::move(targets)),
        tokens_(size_t(samples * kLength)),
        targets_(tokens_.size()) {}

  Batch at(int64_t step, int64_t first_sample) {
    const int64_t begin = (step * kBatch + first_sample) * kLength;
    std::copy_n(all_tokens_.begin() + begin, tokens_.size(), tokens_.begin());
    std::copy_n(all_targets_.begin() + begin, targets_.size(), targets_.begin());
    return batch_of(tokens_, targets_);
  }

 private:
  std::vector<int32_t> all_tokens_, all_targets_, tokens_, targets_;
};

struct Cut {
  Layout layout = {};
  int64_t micro = 1;
  bool exact = false;
  std::string text() const {
    return fmt::format("{} micro-batches of {}{}", layout.text(), micro, exact ? " exact sums" : "");
  }
};

config::DsConfig config_of(const Cut& cut) {
  config::DsConfig c =
      testing::config_of(cut.layout, int(kBatch / cut.layout.data / cut.micro), int(cut.micro));
  c.optimizer.lr = 1e-3, c.optimizer.weight_decay = 0.1;
  c.weight_decay_on = {"all"};
  c.gradient_clipping = 1;
  c.exact_sums = cut.exact;
  return c;
}

BatchSource source_of(MaskedSamples& samples, const runtime::Engine& engine, int rank, int64_t step) {
  const int place = engine.mesh().place(rank).data, places = engine.mesh().data;
  const int64_t micro_batch = engine.samples_per_micro();
  return [&samples, place, places, micro_batch, step](int micro) {
    return samples.at(step, (int64_t(micro) * places + place) * micro_batch);
  };
}

void start_as_the_fixture(runtime::Engine& engine) {
  engine.set_parameters([](const ParamSpec& p) { return gpt2_parameter(fixture(), p, ""); });
}

// Targets of the first step; every second one with a loss is the most likely class in PyTorch after all
// steps.
struct Told {
  std::vector<int32_t> targets = stored_values<int32_t>(fixture(), "targets");
  int64_t with_loss = 0, hits = 0;
};
Told half_told() {
  Told t;
  const auto classes = stored_values<int32_t>(fixture(), "last_classes");
  for (size_t i = 0; i < classes.size(); ++i) {
    if (t.targets[i] == kIgnoredTarget) continue;
    if (t.with_loss++ % 2 == 0) t.targets[i] = classes[i];
    t.hits += t.targets[i] == classes[i];
  }
  return t;
}

Training train_masked(const Cut& cut) {
  std::vector<Training> runs(static_cast<size_t>(cut.layout.ranks()));
  comm::run_ranks(cut.layout.ranks(), [&](comm::Communicator& world) {
    runtime::Engine engine(config_of(cut), masked_gpt(), world, {});
    start_as_the_fixture(engine);
    MaskedSamples samples(cut.micro);
    Training& mine = runs[size_t(world.rank())];
    for (int64_t step = 0; step < kSteps; ++step)
      mine.steps.push_back(engine.train_batch(source_of(samples, engine, world.rank(), step)));
    mine.weights = weights_of(engine);
    const Told told = half_told();
    MaskedSamples guessed(cut.micro, told.targets);
    const runtime::Evaluation seen = engine.evaluate(source_of(guessed, engine, world.rank(), 0),
                                                     int(kBatch / cut.layout.data / cut.micro));
    EXPECT_EQ(seen.targets, told.with_loss);
    EXPECT_EQ(seen.hits, told.hits) << cut.text();
    EXPECT_EQ(seen.accuracy(), double(told.hits) / double(told.with_loss)) << cut.text();
  });
  for (const Training& r : runs) expect_same_bits(r, runs[0], cut.text());
  return std::move(runs[0]);
}

void expect_pytorchs(const Training& got, const std::string& what) {
  const auto losses = stored_values<float>(fixture(), "losses"),
             norms = stored_values<float>(fixture(), "grad_norms");
  for (size_t step = 0; step < size_t(kSteps); ++step) {
    EXPECT_NEAR(got.steps[step].loss, losses[step], 1e-6 * losses[step]) << what << " step " << step;
    EXPECT_NEAR(got.steps[step].grad_norm, norms[step], 1e-6 * norms[step]) << what << " step " << step;
  }
  const model::Model model = masked_gpt()({});
  for (const UnitSpec& unit : model.units())
    for (const ParamSpec& p : unit.params) {
      std::vector<float> mine = got.weights.at(p.name), theirs = gpt2_parameter(fixture(), p, "last.");
      if (p.name.ends_with("attn.c_attn.bias")) without_key_biases(mine), without_key_biases(theirs);
      EXPECT_LT(relative_distance(mine, theirs), 2e-6) << p.name << ", " << what;
    }
}

std::vector<Cut> drawn_cuts(int count) {
  std::mt19937 random(24);
  const auto one_of = [&](std::vector<int> values) { return values[random() % values.size()]; };
  std::vector<Cut> cuts;
  while (int(cuts.size()) < count) {
    Cut cut;
    Layout& l = cut.layout;
    l.pipe = one_of({1, 1, 2, 3}), l.data = one_of({1, 2, 4, 8}), l.tensor = one_of({1, 1, 2, 4});
    l.sequence = one_of({1, 1, 2, 4}), l.zero = one_of({0, 1, 2, 3});
    l.schedule = l.pipe == 1 ? "1f1b" : std::vector{"1f1b", "gpipe", "zb-h1"}[random() % 3];
    l.offload = l.zero > 0 && one_of({0, 1}), l.cut_rows = one_of({0, 1});
    cut.micro = one_of({1, 2, 4, 8}), cut.exact = l.zero < 3 && one_of({0, 0, 1});
    if (l.ranks() > 8 || l.sequence * l.tensor > 4 || cut.micro * l.data > kBatch) continue;
    cuts.push_back(cut);
  }
  return cuts;
}

TEST(MaskedTargets, HavePyTorchsLossesNormsWeightsAndHitsInEveryLayoutAndMicroBatch) {
  for (const Cut& cut : drawn_cuts(60)) expect_pytorchs(train_masked(cut), cut.text());
}

// Micro-batches of two samples: samples 2 and 3, without targets, count as a loss of 0.
TEST(MaskedTargets, AreAveragedInEachMicroBatchWhereThatIsAskedFor) {
  const auto alone = comm::self_communicator();
  config::DsConfig c = config_of({.micro = 2});
  c.loss_average = config::LossAverage::micro_batches;
  runtime::Engine engine(c, masked_gpt(), *alone, {});
  start_as_the_fixture(engine);
  MaskedSamples samples(2);
  const runtime::StepResult r = engine.train_batch(source_of(samples, engine, 0, 0));
  const auto means = stored_values<float>(fixture(), "means.losses");
  EXPECT_NEAR(r.loss, (double(means[0]) + means[1] + means[2]) / 4, 1e-6 * r.loss);
  const double norm = stored_values<float>(fixture(), "means.grad_norm")[0];
  EXPECT_NEAR(r.grad_norm, norm, 1e-6 * norm);
}

// The source overwrites its memory with each micro-batch; values have their own.
TEST(MaskedTargets, HaveTheSameBitsInBatchesOfASourceAndInValues) {
  const auto train = [](bool values) {
    const auto alone = comm::self_communicator();
    runtime::Engine engine(config_of({.micro = 2}), masked_gpt(), *alone, {});
    MaskedSamples samples(2);
    std::vector<MaskedSamples> own(4, MaskedSamples(2));
    Training got;
    for (int64_t step = 0; step < 3; ++step) {
      std::vector<Batch> batches;
      for (int64_t micro = 0; micro < 4; ++micro)
        batches.push_back(own[size_t(micro)].at(step, micro * engine.samples_per_micro()));
      got.steps.push_back(values ? engine.train_batch(batches)
                                 : engine.train_batch(source_of(samples, engine, 0, step)));
    }
    got.weights = weights_of(engine);
    return got;
  };
  expect_same_bits(train(true), train(false), "values");
}

TEST(MaskedTargets, AreWantedByEveryStepAndAStepWithoutAnyChangesNothing) {
  for (const config::LossAverage average : {config::LossAverage::targets, config::LossAverage::micro_batches})
    comm::run_ranks(4, [&](comm::Communicator& world) {
      Cut cut{.layout = {.pipe = 2, .data = 2, .zero = 1}, .micro = 2};
      config::DsConfig c = config_of(cut);
      c.loss_average = average;
      runtime::Engine engine(c, masked_gpt(), world, {});
      MaskedSamples samples(2);
      const Weights before = weights_of(engine);
      const std::vector<int32_t> tokens(2 * kLength, 1), none(2 * kLength, kIgnoredTarget);
      expect_error(Exit::data, {"step 1: no token of the batch's 8 samples has a loss"},
                   [&] { engine.train_batch([&](int) { return batch_of(tokens, none); }); });
      EXPECT_EQ(weights_of(engine), before);
      EXPECT_EQ(engine.step(), 0);
      EXPECT_EQ(engine.train_batch(source_of(samples, engine, world.rank(), 0)).step, 1);
    });
}

TEST(MaskedTargets, EvaluationsWithoutAnySayThereAreNone) {
  const auto alone = comm::self_communicator();
  runtime::Engine engine(config_of({.micro = 2}), masked_gpt(), *alone, {});
  const std::vector<int32_t> tokens(2 * kLength, 1), none(2 * kLength, kIgnoredTarget);
  const runtime::Evaluation e = engine.evaluate([&](int) { return batch_of(tokens, none); }, 2);
  EXPECT_EQ(e.targets, 0);
  EXPECT_EQ(e.hits, 0);
  EXPECT_FALSE(e.accuracy());
  EXPECT_TRUE(std::isnan(e.loss));
}

}  // namespace
}  // namespace cleave::testing
