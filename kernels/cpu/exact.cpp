#include "kernels/exact.h"

#include <atomic>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/cpu/team_loop.h"
#include "kernels/launched.h"

namespace cleave::kernels {

void RoundToGrid::check() const {
  Operand("RoundToGrid", "x", x).is(DType::fp32);
  Operand("RoundToGrid", "y", y).is(DType::int64).numel(x.numel());
  Operand("RoundToGrid", "bad", bad).is(DType::int64).numel(1);
  CHECK(limit > 0 && limit <= 0x1p62, "RoundToGrid: limit must be above 0 and at most 2^62, got {}", limit);
}
CLEAVE_LAUNCH(RoundToGrid)

void FromGrid::check() const {
  Operand("FromGrid", "x", x).is(DType::int64);
  Operand("FromGrid", "y", y).is(DType::fp32).numel(x.numel()).no_overlap_with("x", x);
}
CLEAVE_LAUNCH(FromGrid)

void AddIntegers::check() const {
  Operand("AddIntegers", "x", x).is(DType::int64);
  Operand("AddIntegers", "y", y).is(DType::int64).numel(x.numel());
}
CLEAVE_LAUNCH(AddIntegers)

void SumIntegerSquares::check() const {
  Operand("SumIntegerSquares", "x", x).is(DType::int64);
  Operand("SumIntegerSquares", "out", out).is(DType::int64).numel(4);
  CHECK(x.numel() <= int64_t{1} << 31, "SumIntegerSquares: at most 2^31 elements, got {}", x.numel());
}
CLEAVE_LAUNCH(SumIntegerSquares)

namespace cpu {
namespace {

constexpr int64_t kFewNumel = 1 << 15;  // elements; fewer run on one thread

}  // namespace

void run(const RoundToGrid& op) {
  const float* x = op.x.as<float>();
  int64_t* y = op.y.as<int64_t>();
  const int64_t numel = op.x.numel();
  const double factor = op.factor, limit = op.limit;
  const bool accumulate = op.accumulate;
  std::atomic<bool> bad{false};
  team_loop(numel, numel > kFewNumel, [=, &bad](int64_t begin, int64_t end) {
    bool bad_here = false;
    for (int64_t i = begin; i < end; ++i) {
      const double product = double(x[i]) * factor;
      const bool fits = std::fabs(product) <= limit;  // false for a NaN
      const int64_t nearest = fits ? int64_t(std::nearbyint(product)) : 0;
      y[i] = accumulate ? y[i] + nearest : nearest;
      bad_here = bad_here || !fits;
    }
    if (bad_here) bad = true;
  });
  if (bad) *op.bad.as<int64_t>() = 1;
}

void run(const FromGrid& op) {
  const int64_t* x = op.x.as<int64_t>();
  float* y = op.y.as<float>();
  const int64_t numel = op.x.numel();
  const float scale = op.scale;
  team_loop(numel, numel > kFewNumel, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = float(x[i]) * scale;
  });
}

void run(const AddIntegers& op) {
  const auto* x = reinterpret_cast<const uint64_t*>(op.x.as<int64_t>());
  auto* y = reinterpret_cast<uint64_t*>(op.y.as<int64_t>());
  const int64_t numel = op.x.numel();
  team_loop(numel, numel > kFewNumel, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] += x[i];
  });
}

void run(const SumIntegerSquares& op) {
  const int64_t* x = op.x.as<int64_t>();
  const int64_t numel = op.x.numel();
  std::atomic<uint64_t> sums[4] = {};
  team_loop(numel, numel > kFewNumel, [=, &sums](int64_t begin, int64_t end) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t size = x[i] < 0 ? 0 - uint64_t(x[i]) : uint64_t(x[i]);
      const unsigned __int128 square = static_cast<unsigned __int128>(size) * size;
      const auto low = uint64_t(square), high = uint64_t(square >> 64);
      a += low & 0xffffffffu, b += low >> 32, c += high & 0xffffffffu, d += high >> 32;
    }
    sums[0] += a, sums[1] += b, sums[2] += c, sums[3] += d;
  });
  int64_t* out = op.out.as<int64_t>();
  for (int i = 0; i < 4; ++i) out[i] = int64_t(sums[i].load());
}

}  // namespace cpu
}  // namespace cleave::kernels
