#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "core/error.h"

namespace cleave::optim {
namespace {

// Assigns the words "name=value" of a fixture line to the fields with these names.
config::SchedulerConfig config_of(const std::string& type, std::istringstream& words) {
  config::SchedulerConfig c;
  c.type = choice_of<config::SchedulerType>(type).value();
  const std::map<std::string, std::function<void(double)>> fields = {
      {"warmup_min_lr", [&](double v) { c.warmup_min_lr = v; }},
      {"warmup_max_lr", [&](double v) { c.warmup_max_lr = v; }},
      {"warmup_num_steps", [&](double v) { c.warmup_num_steps = int64_t(v); }},
      {"total_num_steps", [&](double v) { c.total_num_steps = int64_t(v); }},
      {"warmup_min_ratio", [&](double v) { c.warmup_min_ratio = v; }},
      {"cos_min_ratio", [&](double v) { c.cos_min_ratio = v; }},
      {"cycle_min_lr", [&](double v) { c.cycle_min_lr = v; }},
      {"cycle_max_lr", [&](double v) { c.cycle_max_lr = v; }},
      {"decay_lr_rate", [&](double v) { c.decay_lr_rate = v; }},
      {"cycle_first_step_size", [&](double v) { c.cycle_first_step_size = int64_t(v); }},
      {"cycle_second_step_size", [&](double v) { c.cycle_second_step_size = int64_t(v); }},
      {"cycle_first_stair_count", [&](double v) { c.cycle_first_stair_count = int64_t(v); }},
      {"cycle_second_stair_count", [&](double v) { c.cycle_second_stair_count = int64_t(v); }},
      {"decay_step_size", [&](double v) { c.decay_step_size = int64_t(v); }},
      {"cycle_momentum", [&](double v) { c.cycle_momentum = v != 0; }},
      {"cycle_min_mom", [&](double v) { c.cycle_min_mom = v; }},
      {"cycle_max_mom", [&](double v) { c.cycle_max_mom = v; }},
      {"decay_mom_rate", [&](double v) { c.decay_mom_rate = v; }},
      {"lr_range_test_min_lr", [&](double v) { c.lr_range_test_min_lr = v; }},
      {"lr_range_test_step_size", [&](double v) { c.lr_range_test_step_size = int64_t(v); }},
      {"lr_range_test_step_rate", [&](double v) { c.lr_range_test_step_rate = v; }},
      {"lr_range_test_staircase", [&](double v) { c.lr_range_test_staircase = v != 0; }},
  };
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "warmup_type") {
      c.warmup_type = choice_of<config::WarmupType>(value).value();
    } else {
      fields.at(name)(std::stod(value));
    }
  }
  return c;
}

TEST(LrSchedule, HasDeepSpeedsValuesAtEveryStep) {
  std::ifstream file(FIXTURES "/lr_schedules.txt");
  ASSERT_TRUE(file);
  std::string line;
  std::getline(file, line);
  int cases = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string type;
    double optimizer_lr = 0;
    words >> type >> optimizer_lr;
    const LrSchedule schedule(config_of(type, words), optimizer_lr);
    std::string rates;
    std::getline(file, rates);
    std::istringstream steps(rates);
    std::string step;
    for (int64_t applied = 0; steps >> step; ++applied) {
      double lr = 0, beta1 = 0, beta2 = 0;
      ASSERT_EQ(std::sscanf(step.c_str(), "%lf:%lf:%lf", &lr, &beta1, &beta2), 3);
      const Rates r = schedule.at(applied);
      const std::string where = line + " after " + std::to_string(applied);
      ASSERT_NEAR(r.lr, lr, 1e-12 * std::fabs(lr)) << where;
      // The optimizer of the fixture has betas 0.9 and 0.999.
      ASSERT_NEAR(r.momentum < 0 ? 0.9 : r.momentum, beta1, 1e-12) << where;
      ASSERT_EQ(r.beta2 < 0 ? 0.999 : r.beta2, beta2) << where;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 150);
}

TEST(LrSchedule, UsesTheOptimizersRateWithoutAType) {
  const LrSchedule s(config::SchedulerConfig{}, 0.25);
  for (const int64_t applied : {0, 1, 1000000}) EXPECT_EQ(s.at(applied), (Rates{.lr = 0.25}));
}

TEST(LrSchedule, TheFirstTwoStepsOfALogarithmicWarmUpUseTheMinimum) {
  config::SchedulerConfig c;
  c.type = config::SchedulerType::warmup, c.warmup_num_steps = 10, c.warmup_min_lr = 0.5;
  const LrSchedule s(c, 1.0);
  EXPECT_EQ(s.at(0).lr, 0.5);
  EXPECT_EQ(s.at(1).lr, 0.5);
  EXPECT_GT(s.at(2).lr, 0.5);
  EXPECT_EQ(s.at(11).lr, 1.0);
}

// Documented multipliers of the Hugging Face schedules, step by step, for 10 steps with 4 warm-up steps.
TEST(LrSchedule, HasTheTrainersMultipliersAtEveryStep) {
  const double half = 0.5, r = std::sqrt(3.0) / 2;
  const std::map<config::SchedulerType, std::vector<double>> expected = {
      {config::SchedulerType::trainer_linear,
       {0, 0.25, half, 0.75, 1, 5.0 / 6, 4.0 / 6, half, 2.0 / 6, 1.0 / 6, 0, 0}},
      {config::SchedulerType::trainer_constant, {0, 0.25, half, 0.75, 1, 1, 1, 1, 1, 1, 1, 1}},
      {config::SchedulerType::trainer_cosine,
       {0, 0.25, half, 0.75, 1, (1 + r) / 2, 0.75, half, 0.25, (1 - r) / 2, 0}}};
  for (const auto& [type, ratios] : expected) {
    config::SchedulerConfig c;
    c.type = type, c.warmup_num_steps = 4, c.total_num_steps = 10;
    for (size_t step = 0; step < ratios.size(); ++step)
      EXPECT_NEAR(LrSchedule(c, 2.0).at(int64_t(step)).lr, 2 * ratios[step], 1e-15)
          << name_of(type) << " " << step;
  }
  config::SchedulerConfig c;
  c.type = config::SchedulerType::trainer_linear, c.warmup_num_steps = 0, c.total_num_steps = 4;
  EXPECT_EQ(LrSchedule(c, 1.0).at(0).lr, 1);
  EXPECT_EQ(LrSchedule(c, 1.0).at(1).lr, 0.75);
}

}  // namespace
}  // namespace cleave::optim
