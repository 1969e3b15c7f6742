#include "zero/update_times.h"

#include <gtest/gtest.h>

#include "config_schema/ds_config.h"

namespace cleave::zero {
namespace {

// 16-bit training of 1e9 parameters with Adam: 12 bytes of state, 2 of gradient, 2 of weights.
constexpr UpdateBytes kWeightsOnDevice{
    .state = 12'000, .read = 12'000, .written = 12'000, .gradients_here = 2'000, .weights_here = 2'000};
constexpr UpdateBytes kEverythingAtHome{
    .state = 12'000, .read = 12'000, .written = 12'000, .gradients_at_home = 2'000, .weights_at_home = 2'000};

TEST(UpdateTimes, AreThoseOfTheBusiestResource) {
  // Limits: host kernels, and the link, which carries the state both ways.
  const UpdateTimes slow_host =
      update_times(kWeightsOnDevice, {.host = 1000, .to_device = 4000, .to_host = 3000});
  EXPECT_DOUBLE_EQ(slow_host.host, 12);
  EXPECT_DOUBLE_EQ(slow_host.device, 4);
  // With a host faster than the link, gradients arrive while the kernels run.
  const UpdateTimes slow_link =
      update_times(kWeightsOnDevice, {.host = 48'000, .to_device = 4000, .to_host = 1000});
  EXPECT_DOUBLE_EQ(slow_link.host, 2);
  EXPECT_DOUBLE_EQ(slow_link.device, 12);
}

TEST(UpdateTimes, CountGradientsAndWeightsOnTheLinkOfTheSideThatLacksThem) {
  const UpdateRates rates{.host = 6000, .to_device = 1000, .to_host = 1000};
  EXPECT_DOUBLE_EQ(update_times(kEverythingAtHome, rates).host, 2);
  EXPECT_DOUBLE_EQ(update_times(kEverythingAtHome, rates).device, 14);
  EXPECT_DOUBLE_EQ(update_times(kWeightsOnDevice, rates).host, 2);
  EXPECT_DOUBLE_EQ(update_times(kWeightsOnDevice, rates).device, 12);
  UpdateBytes lamb = kEverythingAtHome;  // it reads its state twice
  lamb.read *= 2;
  EXPECT_DOUBLE_EQ(update_times(lamb, rates).device, 26);
}

TEST(UpdateTimes, AreDescribedWithTheNumbersThatDecided) {
  const UpdateBytes bytes{.state = 2'100'000'000, .read = 2'100'000'000, .written = 2'100'000'000};
  EXPECT_EQ(describe_update(bytes, {.host = 100e9, .to_device = 52e9, .to_host = 51e9}),
            "update: on the host, 0.021 s a step (2.10e+09 bytes of state at 100 GB/s); streamed through the "
            "GPU it would take 0.041 s (link 52 + 51 GB/s)");
  EXPECT_EQ(describe_update(bytes, {.host = 5e9, .to_device = 52e9, .to_host = 51e9}),
            "update: streamed through the GPU, 0.041 s a step (link 52 + 51 GB/s); on the host it would take "
            "0.42 s (2.10e+09 bytes of state at 5 GB/s)");
}

TEST(UpdateTimes, OfNothingAreNothingAndTheHostUpdates) {
  const UpdateTimes t = update_times({}, {.host = 1, .to_device = 1, .to_host = 1});
  EXPECT_EQ(t.host, 0);
  EXPECT_FALSE(t.device < t.host);
}

TEST(UpdateTimes, AreMeasuredOnceInAProcess) {
  const auto adam = optim::make_optimizer({.type = config::OptimizerType::adamw});
  const UpdateRates first = measure_update(*adam, Device{}, MemoryKind::host);
  const UpdateRates again = measure_update(*optim::make_optimizer({.type = config::OptimizerType::adamw}),
                                           Device{}, MemoryKind::host);
  EXPECT_EQ(again.host, first.host);  // no two measurements are equal
  EXPECT_EQ(again.to_device, first.to_device);
  EXPECT_NE(
      measure_update(*optim::make_optimizer({.type = config::OptimizerType::sgd}), Device{}, MemoryKind::host)
          .host,
      first.host);
}

TEST(UpdateTimes, AreMeasuredForEveryOptimizer) {
  for (const config::OptimizerType type :
       {config::OptimizerType::adamw, config::OptimizerType::sgd, config::OptimizerType::lamb}) {
    const UpdateRates r = measure_update(*optim::make_optimizer({.type = type}), Device{}, MemoryKind::host);
    for (const double rate : {r.host, r.to_device, r.to_host}) {
      EXPECT_GT(rate, 1e7) << name_of(type);
      EXPECT_LT(rate, 1e13) << name_of(type);
    }
  }
}

}  // namespace
}  // namespace cleave::zero
