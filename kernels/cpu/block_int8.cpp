#include "kernels/block_int8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/team_loop.h"
#include "kernels/launched.h"

namespace cleave::kernels {
namespace {

void check_block(const char* op, const Tensor& floats, const Tensor& codes, const Tensor& scales,
                 int64_t block) {
  CHECK(block > 0, "{}: blocks of {} elements", op, block);
  Operand(op, "codes", codes).is(DType::uint8).numel(floats.numel()).no_overlap_with("scales", scales);
  Operand(op, "scales", scales).is(DType::fp32).numel(ceil_div(floats.numel(), block));
}

}  // namespace

void ToBlockInt8::check() const {
  Operand("ToBlockInt8", "x", x).is_float().no_overlap_with("codes", codes).no_overlap_with("scales", scales);
  check_block("ToBlockInt8", x, codes, scales, block);
}
CLEAVE_LAUNCH(ToBlockInt8)

void FromBlockInt8::check() const {
  Operand("FromBlockInt8", "y", y)
      .is_float()
      .no_overlap_with("codes", codes)
      .no_overlap_with("scales", scales);
  check_block("FromBlockInt8", y, codes, scales, block);
}
CLEAVE_LAUNCH(FromBlockInt8)

namespace cpu {
namespace {

constexpr int64_t kSerialNumel = 1 << 15;  // elements; fewer run on one thread

float wide(float x) { return x; }
float wide(bf16 x) { return to_float(x); }
float wide(fp16 x) { return to_float(x); }

template <class T>
void encode(const T* x, uint8_t* codes, float* scale, int64_t numel) {
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < numel; ++i) {
    const float magnitude = std::fabs(wide(x[i]));
    finite = finite && magnitude <= std::numeric_limits<float>::max();  // false for a NaN
    largest = std::max(largest, magnitude);
  }
  *scale = finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
  const bool zero = !(*scale > 0);
  for (int64_t i = 0; i < numel; ++i) {
    // Near the smallest number a scale has few bits, and its rounding can raise the quotient above 127.
    const float quotient = zero ? 0 : std::clamp(wide(x[i]) / *scale, -127.0f, 127.0f);
    codes[i] = uint8_t(int8_t(std::nearbyint(quotient)));
  }
}

template <class T>
void decode(T* y, const uint8_t* codes, float scale, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    const float product = float(int8_t(codes[i])) * scale;
    if constexpr (std::is_same_v<T, float>)
      y[i] = product;
    else
      y[i] = from_float<T>(product);
  }
}

template <class Body>
void with_type(DType type, Body body) {
  if (type == DType::fp32) return body(float{});
  if (type == DType::bf16) return body(bf16{});
  body(fp16{});
}

// Calls body(first element, elements, block) for every block.
template <class Body>
void each_block(int64_t numel, int64_t block, const Body& body) {
  team_loop(ceil_div(numel, block), numel > kSerialNumel, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) body(b * block, std::min(block, numel - b * block), b);
  });
}

}  // namespace

void run(const ToBlockInt8& op) {
  uint8_t* codes = op.codes.as<uint8_t>();
  float* scales = op.scales.as<float>();
  with_type(op.x.dtype(), [&](auto type) {
    const auto* x = op.x.as<decltype(type)>();
    each_block(op.x.numel(), op.block,
               [=](int64_t at, int64_t numel, int64_t b) { encode(x + at, codes + at, scales + b, numel); });
  });
}

void run(const FromBlockInt8& op) {
  const uint8_t* codes = op.codes.as<uint8_t>();
  const float* scales = op.scales.as<float>();
  with_type(op.y.dtype(), [&](auto type) {
    auto* y = op.y.as<decltype(type)>();
    each_block(op.y.numel(), op.block,
               [=](int64_t at, int64_t numel, int64_t b) { decode(y + at, codes + at, scales[b], numel); });
  });
}

}  // namespace cpu
}  // namespace cleave::kernels
