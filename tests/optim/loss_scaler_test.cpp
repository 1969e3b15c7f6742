#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/error.h"

namespace cleave::optim {
namespace {

config::Fp16Config fp16() {
  config::Fp16Config c;
  c.enabled = true;
  return c;
}

struct Trace {
  int zero = 0;
  config::Fp16Config config = fp16();
  std::string overflows;
  std::vector<std::string> scales;
};

std::vector<Trace> traces() {
  std::ifstream file(FIXTURES "/loss_scaler.txt");
  std::vector<Trace> all;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    Trace t;
    std::istringstream head(line);
    head >> t.zero >> t.config.initial_scale_power >> t.config.loss_scale_window >> t.config.hysteresis >>
        t.config.consecutive_hysteresis >> t.config.min_loss_scale >> t.overflows;
    std::getline(file, line);
    std::istringstream body(line);
    for (std::string word; body >> word;) t.scales.push_back(word);
    all.push_back(t);
  }
  return all;
}

TEST(LossScaler, FollowsDeepSpeedsTracesStepByStep) {
  const std::vector<Trace> all = traces();
  ASSERT_EQ(all.size(), 160u);
  int stopped = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    const Trace& t = all[k];
    LossScaler scaler(t.config, !t.zero);
    for (size_t i = 0; i < t.scales.size(); ++i) {
      const auto result = scaler.update(t.overflows[i] == '1');
      const bool stop = t.scales[i] == "stop";
      stopped += stop;
      ASSERT_EQ(result == LossScaler::Update::at_minimum, stop) << "case " << k << " step " << i;
      const double wanted = stop ? scaler.scale() : std::stod(t.scales[i]);
      ASSERT_EQ(scaler.scale(), wanted) << "case " << k << " step " << i;
    }
  }
  EXPECT_GE(stopped, 50);
}

TEST(LossScaler, AFixedScaleAndOtherTypesNeverChange) {
  config::Fp16Config fixed = fp16();
  fixed.loss_scale = 128;
  for (LossScaler scaler :
       {LossScaler(fixed), LossScaler(fixed, true), LossScaler(), LossScaler(config::Fp16Config{})}) {
    const double before = scaler.scale();
    for (int i = 0; i < 2000; ++i) ASSERT_EQ(scaler.update(i % 3 == 0), LossScaler::Update::ok);
    EXPECT_EQ(scaler.scale(), before);
  }
  EXPECT_EQ(LossScaler(fixed).scale(), 128);
  EXPECT_EQ(LossScaler().scale(), 1);
}

TEST(LossScaler, TheFirstGrowthComesAfterWindowPlusOneCleanSteps) {
  config::Fp16Config c = fp16();
  c.initial_scale_power = 4, c.loss_scale_window = 10;
  LossScaler scaler(c);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(scaler.update(false), LossScaler::Update::ok);
  EXPECT_EQ(scaler.scale(), 16);
  ASSERT_EQ(scaler.update(false), LossScaler::Update::ok);
  EXPECT_EQ(scaler.scale(), 32);
}

TEST(LossScaler, ARestoredStateContinuesTheSameTrace) {
  for (const Trace& t : traces()) {
    LossScaler whole(t.config, !t.zero), first(t.config, !t.zero);
    for (size_t i = 0; i < t.scales.size(); ++i) {
      const bool overflow = t.overflows[i] == '1';
      if (i == t.scales.size() / 2) {
        LossScaler second(t.config, !t.zero);
        second.restore(first.state());
        first = second;
      }
      ASSERT_EQ(whole.update(overflow), first.update(overflow));
      ASSERT_EQ(whole.state(), first.state());
    }
  }
}

TEST(LossScaler, AtTheMinimumNothingChanges) {
  config::Fp16Config c = fp16();
  c.initial_scale_power = 0, c.hysteresis = 1;
  LossScaler scaler(c);
  const LossScaler::State before = scaler.state();
  EXPECT_EQ(scaler.update(true), LossScaler::Update::at_minimum);
  EXPECT_EQ(scaler.state(), before);
  LossScaler plain(c, true);
  EXPECT_EQ(plain.update(true), LossScaler::Update::ok);
  EXPECT_EQ(plain.scale(), 1);
}

TEST(LossScaler, RejectsAWindowOfZero) {
  config::Fp16Config c = fp16();
  c.loss_scale_window = 0;
  EXPECT_THROW(LossScaler{c}, Error);
}

}  // namespace
}  // namespace cleave::optim
