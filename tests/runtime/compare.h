// Allowed differences between two trainings.
#pragma once
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/small_models.h"

namespace cleave::testing {

// Over all weights together: single tensors with rounding noise as gradient (a key bias) move by whole Adam
// steps.
inline double relative_distance(const Weights& a, const Weights& b) {
  double norm = 0, distance = 0;
  for (const auto& [name, values] : a)
    for (size_t i = 0; i < values.size(); ++i) {
      norm += double(values[i]) * values[i];
      distance += (double(values[i]) - b.at(name)[i]) * (double(values[i]) - b.at(name)[i]);
    }
  return std::sqrt(distance / norm);
}

// For one tensor.
inline double relative_distance(const std::vector<float>& got, const std::vector<float>& want) {
  double norm = 0, distance = 0;
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    norm += double(want[i]) * want[i];
    distance += (double(got[i]) - want[i]) * (double(got[i]) - want[i]);
  }
  return std::sqrt(distance / std::max(norm, 1e-20));
}

inline void expect_same_bits(const Training& got, const Training& want, const std::string& what) {
  for (size_t s = 0; s < want.steps.size(); ++s) {
    ASSERT_EQ(got.steps[s].loss, want.steps[s].loss) << what << ", step " << s;
    ASSERT_EQ(got.steps[s].grad_norm, want.steps[s].grad_norm) << what << ", step " << s;
  }
  ASSERT_EQ(got.weights, want.weights) << what;
}

}  // namespace cleave::testing
