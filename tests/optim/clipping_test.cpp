#include "optim/clipping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cleave::optim {
namespace {

TEST(GradientFactor, OnlyUndoesTheLossScaleIfTheNormIsSmall) {
  EXPECT_EQ(gradient_factor(1024, 0.5, 1.0), 1.0 / 1024);
  EXPECT_EQ(gradient_factor(1, 0.999998, 1.0), 1.0);
  EXPECT_EQ(gradient_factor(2, 1e9, 0), 0.5);
}

TEST(GradientFactor, BringsTheNormJustBelowTheLimit) {
  for (const double norm : {1.0, 3.0, 1e4})
    for (const double clipping : {0.1, 1.0}) {
      const double clipped = norm * gradient_factor(1, norm, clipping);
      EXPECT_LT(clipped, clipping);
      EXPECT_NEAR(clipped, clipping, 2e-6 * clipping / norm);
    }
}

TEST(GradientFactor, IsOneOverTheScaleAtZeroNormAndZeroAtInfinity) {
  EXPECT_EQ(gradient_factor(8, 0, 1.0), 0.125);
  EXPECT_EQ(gradient_factor(8, std::numeric_limits<double>::infinity(), 1.0), 0);
}

}  // namespace
}  // namespace cleave::optim
