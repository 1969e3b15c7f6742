// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC11). A value is a function of (seed, stream, index), so initial weights, dropout masks and sample order
// do not depend on how many ranks share the work or the order of the work.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace cleave {

struct Philox {
  uint64_t seed = 0;
  uint64_t stream = 0;  // selects the sequence: hash of a parameter name, a dropout layer and step, ...

  // Four independent 32-bit words; index is the 64-bit block counter.
  constexpr std::array<uint32_t, 4> block(uint64_t index) const {
    uint32_t c0 = uint32_t(index), c1 = uint32_t(index >> 32), c2 = uint32_t(stream),
             c3 = uint32_t(stream >> 32);
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
      const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
      c1 = uint32_t(p1), c3 = uint32_t(p0), c0 = n0, c2 = n2;
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
  }

  // The index-th 32-bit word of the sequence.
  constexpr uint32_t word(uint64_t index) const { return block(index / 4)[index % 4]; }

  // Uniform in [0, 1) with 24 bits.
  constexpr float uniform(uint64_t index) const { return float(word(index) >> 8) * 0x1p-24f; }

  // Standard normal by Box-Muller: two words give the cosine branch and the sine branch, a block gives four
  // values.
  double normal(uint64_t index) const {
    const auto w = block(index / 4);
    const size_t pair = index / 2 % 2 * 2;
    const double u = (double(w[pair] >> 8) + 1.0) * 0x1p-24;  // in (0, 1], so the logarithm is finite
    const double angle = 2.0 * std::numbers::pi * double(w[pair + 1] >> 8) * 0x1p-24;
    return std::sqrt(-2.0 * std::log(u)) * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
};

// FNV-1a; names the stream of a parameter.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : name) h = (h ^ uint8_t(c)) * 0x100000001b3ull;
  return h;
}

}  // namespace cleave
