#include "core/philox.h"

#include <gtest/gtest.h>

namespace cleave {
namespace {

using Philox4x32 = std::array<uint32_t, 4>;

// Known answers of philox4x32-10 published with Random123 (Salmon et al., SC11).
TEST(Philox, ReturnsThePublishedTestVectors) {
  EXPECT_EQ((Philox{0, 0}.block(0)), (Philox4x32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint64_t ones = ~uint64_t{0};
  EXPECT_EQ((Philox{ones, ones}.block(ones)), (Philox4x32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: the digits of pi.
  const Philox pi{.seed = 0x299f31d0a4093822ull, .stream = 0x0370734413198a2eull};
  EXPECT_EQ(pi.block(0x85a308d3243f6a88ull), (Philox4x32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, WordsWalkThroughTheBlocks) {
  const Philox p{.seed = 5, .stream = 6};
  for (uint64_t i = 0; i < 40; ++i) EXPECT_EQ(p.word(i), p.block(i / 4)[i % 4]);
}

TEST(Philox, UniformLiesInItsIntervalAndNormalIsFinite) {
  const Philox p{.seed = 1, .stream = hash_name("x")};
  double mean = 0, square = 0;
  constexpr int kDraws = 100000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    ASSERT_GE(p.uniform(i), 0.0f);
    ASSERT_LT(p.uniform(i), 1.0f);
    const double x = p.normal(i);
    ASSERT_TRUE(std::isfinite(x));
    mean += x / kDraws, square += x * x / kDraws;
  }
  EXPECT_NEAR(mean, 0, 4 / std::sqrt(kDraws));
  EXPECT_NEAR(square, 1, 4 * std::sqrt(2.0 / kDraws));
}

TEST(Philox, StreamsOfDifferentNamesDiffer) {
  EXPECT_NE(hash_name("h.0.attn.qkv.weight"), hash_name("h.1.attn.qkv.weight"));
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cull);  // the published FNV-1a test vector
}

}  // namespace
}  // namespace cleave
