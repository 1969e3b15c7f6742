#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/safetensors.h"

namespace cleave::model {
namespace {

// Values that transformers computes in fp32 for Llama 3.1 8B; tests/fixtures/make_decoder_fixtures.py.
void expect_as_transformers(const char* name, const RopeScaling& scaling) {
  const std::vector<double> got = rope_frequencies(128, 500000, scaling);
  std::vector<float> want(got.size());
  const checkpoint::SafetensorsFile file(FIXTURES "/llama_tiny.safetensors");
  ASSERT_EQ(file.tensors().at(name).shape, std::vector<int64_t>{int64_t(got.size())});
  file.read(name, 0, std::as_writable_bytes(std::span(want)));
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << name << ", plane " << i;
}

TEST(Rope, ScaledFrequenciesEqualTransformers) {
  expect_as_transformers("rope.llama3", {.kind = RopeScaling::Kind::llama3, .factor = 8});
  expect_as_transformers("rope.linear", {.kind = RopeScaling::Kind::linear, .factor = 4});
}

TEST(Rope, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  const RopeScaling scaling{.kind = RopeScaling::Kind::llama3, .factor = 8};
  const auto plain = rope_frequencies(128, 500000, {}), scaled = rope_frequencies(128, 500000, scaling);
  int kept = 0, stretched = 0, between = 0;
  for (size_t i = 0; i < plain.size(); ++i)
    ++(scaled[i] == plain[i] ? kept : scaled[i] == plain[i] / 8 ? stretched : between);
  // 2 pi 500000^(i / 64) passes 8192 / 4 at i = 28.2 and 8192 at i = 35.0.
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(between, 6);
  EXPECT_EQ(stretched, 29);
}

TEST(Rope, TheTableHoldsCosineAndSineOfPositionTimesFrequency) {
  const RopeTable table(5, {1.0, 0.25, 0.01});
  ASSERT_EQ(table.cos.size(), 15u);
  EXPECT_FLOAT_EQ(table.cos[0], 1);
  EXPECT_FLOAT_EQ(table.sin[2 * 3 + 1], std::sin(0.5f));
  EXPECT_FLOAT_EQ(table.cos[4 * 3 + 2], std::cos(0.04f));
}

TEST(Rope, OneTableServesAllWhoWantTheSameAngles) {
  const auto table = rope_table(5, {1.0, 0.25});
  EXPECT_EQ(rope_table(5, {1.0, 0.25}), table);
  EXPECT_EQ(rope_table(6, {1.0, 0.25})->positions, 6);
  const auto other = rope_table(6, {1.0, 0.5});
  EXPECT_FLOAT_EQ(other->cos[2 * 2 + 1], std::cos(1.0f));
  EXPECT_EQ(table->positions, 5);  // existing references stay valid
}

}  // namespace
}  // namespace cleave::model
