// Product of all layout settings: pipe x data x sequence x tensor x ZeRO stage x schedule x accumulation x
// offload, every legal combination up to 8 ranks, half of them with clipping, which delays all updates until
// after the backward. Combinations with equal bits according to docs/numerics.md are compared bit by bit, and
// the first of each such class with one rank on the same global batch. Runs a sample by default, and all with
// CLEAVE_FULL_PRODUCT=1.
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>

#include "core/environment.h"
#include "pipeline/schedule.h"
#include "tests/runtime/cut_models.h"
#include "tests/sampled.h"

namespace cleave::testing {
namespace {

constexpr int kSteps = 5, kMostRanks = 8;
constexpr int kSampled = kSanitized ? 101 : 24;  // by default one combination out of this number

bool whole_product() { return !environment_value("CLEAVE_FULL_PRODUCT").empty(); }

// Enough layers for two chunks on each of four stages, and an untied head: a tied one is summed in another
// order on one stage than on several.
runtime::ModelFactory deep() {
  return [](const model::Axes& axes) {
    model::Model m = model::make_model(model::kGpt2,
                                       {.vocab = kVocab, .positions = 8, .width = 8, .layers = 6, .heads = 4},
                                       DType::fp32, kTokens, "deep", axes);
    m.head = std::make_unique<model::ClassifierHead>(model::ClassifierHead::Config{
        .unit = "lm_head", .weight = "lm_head.weight", .classes = kVocab, .width = 8, .axis = axes.tensor});
    return m;
  };
}

// Adam divides by the size of a gradient; epsilon keeps it from turning rounding noise into whole steps.
Training train_one(const Layout& l, int accumulation) {
  config::DsConfig c = config_of(l, accumulation);
  c.optimizer.eps = 1e-2;
  return train_on_all(l, c, deep(), kSteps);
}

const Training& one_rank(int samples, bool clips) {
  static std::map<std::pair<int, bool>, Training> known;
  Training& run = known[{samples, clips}];
  if (run.steps.empty()) run = train_one({.clips = clips}, samples);
  return run;
}

// Totals of all tests in this file, printed at the end.
struct Tally : ::testing::Environment {
  int trainings = 0;
  double worst_loss = 0, worst_weights = 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();

  void add(const Training& got, const Training& want) {
    for (size_t s = 0; s < want.steps.size(); ++s)
      worst_loss = std::max(worst_loss, std::abs(got.steps[s].loss / want.steps[s].loss - 1));
    worst_weights = std::max(worst_weights, relative_distance(got.weights, want.weights));
  }
  void TearDown() override {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("%d trainings in %.0f s; against one rank a loss differs by %.1e at most, weights by %.1e\n",
                trainings, took.count(), worst_loss, worst_weights);
  }
};
Tally& tally() {
  static auto* const all = static_cast<Tally*>(::testing::AddGlobalTestEnvironment(new Tally));
  return *all;
}

// Layouts of one place in the other axes, each with an accumulation. Clipping alternates over every other
// value, so that each pair of them is trained both ways.
std::vector<std::pair<Layout, int>> layouts(int data, int sequence, int tensor) {
  const auto& names = pipeline::schedule_names();
  std::vector<std::pair<Layout, int>> all;
  for (const int pipe : {1, 2, 4})
    for (const int zero : {0, 1, 2, 3})
      for (const std::string& schedule : names)
        for (const bool offload : {false, true})
          for (const bool cut_rows : {true, false}) {
            Layout l{pipe, data, tensor, zero, schedule.c_str(), offload, cut_rows};
            l.sequence = sequence;
            if (l.ranks() > kMostRanks || (pipe == 1 && schedule != "1f1b")) continue;
            if (tensor == 1 && !cut_rows) continue;
            const auto order = std::find(names.begin(), names.end(), schedule) - names.begin();
            for (const int accumulation : {1, 4}) {
              l.clips = (pipe / 2 + zero + order + offload + cut_rows + accumulation / 4 + data + sequence +
                         tensor / 2) %
                            2 ==
                        0;
              all.emplace_back(l, accumulation);
            }
          }
  return all;
}

class Product : public ::testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  static void SetUpTestSuite() { tally(); }
};
// Sizes of the data, sequence and tensor axes: up to 8 ranks, and 4 heads.
std::vector<std::tuple<int, int, int>> places() {
  std::vector<std::tuple<int, int, int>> all;
  for (const int data : {1, 2, 3})
    for (const int sequence : {1, 2})
      for (const int tensor : {1, 2, 4})
        if (data * sequence * tensor <= kMostRanks && sequence * tensor <= 4)
          all.emplace_back(data, sequence, tensor);
  return all;
}

INSTANTIATE_TEST_SUITE_P(DataSequenceTensor, Product, ::testing::ValuesIn(places()), [](const auto& p) {
  return fmt::format("data{}sequence{}tensor{}", std::get<0>(p.param), std::get<1>(p.param),
                     std::get<2>(p.param));
});

// Bits are equal with one micro-batch per step at all stages, and with more at stages 0 and 1, and at 2 and
// 3. Runs with whole rows between cut products, and with and without clipping, form separate classes.
TEST_P(Product, LearnsWhatOneRankLearnsWithTheSameBitsInEveryLayout) {
  const auto [data, sequence, tensor] = GetParam();
  std::map<std::tuple<int, bool, bool, bool>, Training> classes;
  std::set<std::tuple<int, bool, bool>> paths;  // by update: stage, offload, before or after the norm
  int n = data + 5 * tensor + 7 * sequence;
  for (const auto& [l, accumulation] : layouts(data, sequence, tensor)) {
    const bool ranks_first = accumulation > 1 && l.zero >= 2;
    Training& want = classes[{accumulation, ranks_first, l.cut_rows, l.clips}];
    if (!whole_product() && ++n % kSampled != 0 && !want.steps.empty()) continue;
    const Training got = train_one(l, accumulation);
    ++tally().trainings;
    paths.insert({l.zero, l.offload, l.clips});
    const std::string what = fmt::format("{} accumulation {}", l.text(), accumulation);
    if (want.steps.empty()) {
      want = got;
      const Training& alone = one_rank(data * accumulation, l.clips);
      tally().add(got, alone);
      expect_close(got, alone, 1e-6, what);
    }
    expect_same_bits(got, want, what);
  }
  if (whole_product()) {
    EXPECT_EQ(paths.size(), 4u * 2 * 2);
  }
}

}  // namespace
}  // namespace cleave::testing
