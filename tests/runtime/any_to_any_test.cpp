// Loads checkpoints of one random layout in another: pipe, data, sequence and tensor axis, ZeRO stage,
// schedule, and homes of weights, gradients and state. A step has the same samples in all of them, so all
// train the same run.
#include <random>

#include "checkpoint/digest.h"
#include "tests/runtime/cut_models.h"
#include "tests/runtime/homes.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

constexpr int kSamples = 8, kMostRanks = 8, kShares = 6;
constexpr int kPairs = kSanitized ? 12 : 60;
constexpr int64_t kHalf = 2, kWhole = 4;  // in steps

struct TestDevice {
  Layout layout;
  Homes homes;
  std::string text() const { return fmt::format("{} / {}", layout.text(), text_of(homes, config())); }
  config::DsConfig config() const {
    // Adam divides by the size of a gradient; epsilon keeps it from turning rounding noise into whole steps.
    config::DsConfig c = with(config_of(layout, kSamples / layout.data), homes);
    c.optimizer.eps = 1e-2;
    return c;
  }
};

// Enough layers for two chunks on each of two stages, and an untied head.
runtime::ModelFactory model() {
  return [](const model::Axes& axes) {
    model::Model m = model::make_model(model::kGpt2,
                                       {.vocab = kVocab, .positions = 8, .width = 8, .layers = 3, .heads = 4},
                                       DType::fp32, kTokens, "deep", axes);
    m.head = std::make_unique<model::ClassifierHead>(model::ClassifierHead::Config{
        .unit = "lm_head", .weight = "lm_head.weight", .classes = kVocab, .width = 8, .axis = axes.tensor});
    return m;
  };
}

class Random {
 public:
  explicit Random(uint64_t seed) : words_(seed) {}
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[words_() % values.size()];
  }
  TestDevice place() {
    for (;;) {
      Layout l{.pipe = one_of({1, 2, 4}),
               .data = one_of({1, 2, 4}),
               .tensor = one_of({1, 2}),
               .zero = one_of({0, 1, 2, 3}),
               .cut_rows = one_of({true, false})};
      l.sequence = one_of({1, 1, 2}), l.clips = true;
      if (l.ranks() > kMostRanks) continue;
      l.schedule = l.pipe == 2  ? one_of({"1f1b", "gpipe", "interleaved", "zb-h1"})
                   : l.pipe > 1 ? one_of({"1f1b", "gpipe", "zb-h1"})
                                : "1f1b";
      const std::vector<Homes> homes = all_homes();
      Homes home;
      if (words_() % 2) home = homes[words_() % homes.size()];
      if (home.parameters && l.zero < 3) continue;  // only a rank's own shards can be off the device
      return {l, home};
    }
  }

 private:
  std::mt19937_64 words_;
};

// Runs steps starting from the checkpoint `from` and saves the result as `to`, if these have names.
Training steps(const TestDevice& place, const Scratch& files, const std::string& from, int64_t begin,
               int64_t end, const std::string& to) {
  Training run;
  comm::run_ranks(place.layout.ranks(), [&](comm::Communicator& world) {
    const config::DsConfig c = place.config();
    runtime::Engine engine(c, model(), world, {});
    if (!from.empty()) engine.load_checkpoint(files.folder().string(), from);
    EXPECT_EQ(engine.step(), begin);
    if (!from.empty()) engine.save_checkpoint(files.folder().string(), "again");
    Tokens tokens(1, kTokens);
    Training mine;
    for (int64_t s = begin; s < end; ++s)
      mine.steps.push_back(engine.train_batch(
          source(tokens, c, s, engine.mesh().place(world.rank()).data, place.layout.data)));
    if (!to.empty()) engine.save_checkpoint(files.folder().string(), to);
    mine.weights = weights_of(engine);
    if (world.rank() == 0) run = std::move(mine);
  });
  return run;
}

std::map<std::string, std::string> digests_of(const Scratch& files, const std::string& tag) {
  return checkpoint::digests(checkpoint::CheckpointReader(files.folder(), tag), 1);
}

class AnyToAny : public ::testing::TestWithParam<int> {};

TEST_P(AnyToAny, TheSameValuesAndTheSameRun) {
  const Scratch files;
  Random random(uint64_t(100 + GetParam()));
  const Training alone = steps({}, files, "", 0, kWhole, "");
  for (int pair = 0; pair < kPairs / kShares; ++pair) {
    const TestDevice first = random.place(), second = pair % 5 == 0 ? first : random.place();
    const std::string what = fmt::format("{}\nto {}", first.text(), second.text());
    SCOPED_TRACE(what);
    steps(first, files, "", 0, kHalf, "half");
    Training got = steps(second, files, "half", kHalf, kWhole, "");
    EXPECT_EQ(digests_of(files, "again"), digests_of(files, "half")) << what;
    Training want = alone;
    want.steps.erase(want.steps.begin(), want.steps.begin() + kHalf);
    expect_close(got, want, 1e-6, what);
    if (pair % 5 != 0) continue;
    Training unbroken = steps(first, files, "", 0, kWhole, "");
    unbroken.steps.erase(unbroken.steps.begin(), unbroken.steps.begin() + kHalf);
    expect_same_bits(got, unbroken, what);
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, AnyToAny, ::testing::Range(0, kShares));

}  // namespace
}  // namespace cleave::testing
