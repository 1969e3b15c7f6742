// Verdicts on records with known differences.
#include "app/compare/judge.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>

#include "core/error.h"

namespace cleave::app {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 2, kParameters = 4;  // w0 (frozen), w1, w2, w3
constexpr double kRounding = 0x1p-24;

// Values of a run, changed by a test before they are written.
struct Values {
  std::vector<float> weights[kSteps + 1][kParameters], gradients[kSteps + 1][kParameters];
  RecordedStep steps[kSteps];
};

class CompareJudge : public testing::Test {
 protected:
  CompareJudge() : folder_(fs::temp_directory_path() / ("judge." + std::to_string(getpid()))) {}
  ~CompareJudge() override { fs::remove_all(folder_); }

  // A run whose values differ from those of rounding 0 by relative normal numbers of that size.
  static Values run(double rounding, unsigned seed) {
    std::mt19937 values(1), noise(seed);
    std::normal_distribution<double> normal, rounded;  // each keeps a number for its next call
    Values out;
    for (int step = 0; step <= kSteps; ++step)
      for (int p = 0; p < kParameters; ++p)
        for (int i = 0; i < 50; ++i) {
          const double w = p == 0 ? 1 + i : normal(values), g = 0.1 * normal(values);
          out.weights[step][p].push_back(float(w));
          out.gradients[step][p].push_back(float(g * (1 + rounding * rounded(noise))));
        }
    for (int step = 0; step < kSteps; ++step) out.steps[step] = {2.5 + step, 1e-3, 1, false};
    return out;
  }

  RunRecord written(const char* name, const Values& run) {
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    std::vector<RecordedParameter> parameters;
    for (int p = 0; p < kParameters; ++p) parameters.push_back({"w" + std::to_string(p), 50, p > 0});
    RunRecordWriter writer(folder, parameters, {kRounding, false});
    for (int step = 0; step <= kSteps; ++step) {
      writer.begin(RunRecord::Kind::weights, step);
      for (const auto& values : run.weights[step]) writer.append(values);
      if (step == 0) continue;
      writer.begin(RunRecord::Kind::gradients, step);
      for (int p = 1; p < kParameters; ++p) writer.append(run.gradients[step][p]);
      writer.end_step(run.steps[step - 1]);
    }
    writer.finish();
    return RunRecord(folder);
  }

  // The verdict on a second run with this change, beside two that differ by roundings.
  Verdict verdict(const std::function<void(Values&)>& change) {
    Values second = run(kRounding, 3);
    change(second);
    return judge(written("first", run(0, 2)), written("second", second), written("moved", run(kRounding, 4)));
  }

 private:
  fs::path folder_;
};

TEST_F(CompareJudge, FindsRoundingsTheSame) {
  const Verdict v = verdict([](Values&) {});
  EXPECT_TRUE(v.different.empty()) << v.different.front().where;
  EXPECT_EQ(v.closest.size(), 5u);
  EXPECT_EQ(v.steps, kSteps);
  EXPECT_EQ(v.hint, "");
}

TEST_F(CompareJudge, FindsOneGradientWithARelativeChangeOf1e4) {
  const Verdict v = verdict([](Values& r) {
    for (float& g : r.gradients[2][2]) g *= 1.0001f;
  });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_EQ(v.different[0].where, "gradient of w2");
  EXPECT_EQ(v.different[0].step, 2);
  EXPECT_NEAR(v.different[0].difference, 1e-4, 1e-6);
}

TEST_F(CompareJudge, SuggestsADivisor) {
  const Verdict v = verdict([](Values& r) {
    for (auto& step : r.gradients)
      for (auto& gradient : step)
        for (float& g : gradient) g *= 0.5f;
  });
  ASSERT_EQ(v.different.size(), 6u);
  EXPECT_EQ(v.different[0].where, "gradient of w3") << "the last layer's comes first";
  EXPECT_EQ(v.hint, "every gradient is multiplied by 0.5: compare the divisors of the loss");
}

TEST_F(CompareJudge, NamesAMissingGradient) {
  const Verdict v = verdict([](Values& r) { r.gradients[1][2].assign(50, 0); });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_EQ(v.hint, "w2 has no gradient in the second run");
}

TEST_F(CompareJudge, FindsAFrozenWeightThatMoves) {
  const Verdict v = verdict([](Values& r) { r.weights[1][0][7] = std::nextafterf(r.weights[1][0][7], 100); });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_EQ(v.different[0].where, "frozen weight w0");
}

TEST_F(CompareJudge, FindsUpdatesRatesAndLosses) {
  Verdict v = verdict([](Values& r) {
    for (float& w : r.weights[1][3]) w *= 1.0001f;
  });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_EQ(v.different[0].where, "update of w3");
  EXPECT_TRUE(v.hint.starts_with("the gradients are equal: ")) << v.hint;
  v = verdict([](Values& r) { r.steps[1].lr *= 1 + 1e-9; });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_EQ(v.different[0].where, "learning rate");
  v = verdict([](Values& r) { r.steps[0].loss += 1e-5; });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_EQ(v.different[0].values, "2.5 and 2.50001");
  v = verdict([](Values& r) { r.steps[0].skipped = true; });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_EQ(v.different[0].where, "skipped step");
}

TEST_F(CompareJudge, FindsValuesThatAreNotFinite) {
  const Verdict v =
      verdict([](Values& r) { r.gradients[1][1][5] = std::numeric_limits<float>::quiet_NaN(); });
  ASSERT_EQ(v.different.size(), 1u);
  EXPECT_TRUE(std::isinf(v.different[0].difference));
}

TEST_F(CompareJudge, ComparesNoGradientsOfSkippedSteps) {
  const auto skipping = [](double rounding, unsigned seed) {
    Values r = run(rounding, seed);
    r.steps[0].skipped = true;
    r.gradients[1][1][5] = std::numeric_limits<float>::quiet_NaN();
    r.gradients[1][1][6] = float(seed);
    return r;
  };
  const Verdict v = judge(written("first", skipping(0, 2)), written("second", skipping(kRounding, 3)),
                          written("moved", skipping(kRounding, 4)));
  EXPECT_TRUE(v.different.empty());
  EXPECT_EQ(v.skipped, 1);
}

TEST_F(CompareJudge, RequiresTheSameModel) {
  const RunRecord record = written("first", run(0, 2));
  EXPECT_THROW((void)record.parameter("w9"), Error);
}

}  // namespace
}  // namespace cleave::app
