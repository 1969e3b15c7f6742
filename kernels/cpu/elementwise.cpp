#include "kernels/elementwise.h"

#include <algorithm>
#include <cstring>

#include "device/fp8.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/team_loop.h"

namespace cleave::kernels::cpu {
namespace {

constexpr int64_t kSerial = 1 << 16;  // elements; fewer run on one thread

template <class T>
void fill_with(const Tensor& y, T value) {
  T* data = static_cast<T*>(y.raw());
  const int64_t numel = y.numel();
  team_loop(numel, numel > kSerial,
            [=](int64_t begin, int64_t end) { std::fill(data + begin, data + end, value); });
}

// Rare casts with fp64.
template <class Y, class X, class F>
void convert(Y* y, const X* x, int64_t numel, F f) {
  team_loop(numel, numel > kSerial, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = f(x[i]);
  });
}

}  // namespace

void run(const Cast& op) {
  if (op.y.dtype() == op.x.dtype()) {
    if (op.y.raw() == op.x.raw()) return;
    return team_loop(op.x.bytes(), op.x.numel() > kSerial, [&op](int64_t begin, int64_t end) {
      std::memcpy(static_cast<std::byte*>(op.y.raw()) + begin,
                  static_cast<const std::byte*>(op.x.raw()) + begin, size_t(end - begin));
    });
  }
  if (op.x.dtype() == DType::fp64)
    return with_float(op.y.dtype(), [&](auto t) {
      convert(op.y.as<decltype(t)>(), op.x.as<double>(), op.x.numel(),
              [](double x) { return from_float<decltype(t)>(float(x)); });
    });
  if (op.y.dtype() == DType::fp64)
    return with_float(op.x.dtype(), [&](auto t) {
      convert(op.y.as<double>(), op.x.as<decltype(t)>(), op.x.numel(),
              [](auto x) { return double(to_float(x)); });
    });
  cast({.y = vec(op.y), .x = vec(op.x), .dy = {}, .numel = op.x.numel()});
}

void run(const Fill& op) {
  switch (op.y.dtype()) {
    case DType::fp32:
      return fill_with(op.y, float(op.value));
    case DType::bf16:
      return fill_with(op.y, from_float<bf16>(float(op.value)).bits);
    case DType::fp16:
      return fill_with(op.y, from_float<fp16>(float(op.value)).bits);
    case DType::fp64:
      return fill_with(op.y, op.value);
    case DType::int64:
      return fill_with(op.y, int64_t(op.value));
    case DType::int32:
      return fill_with(op.y, int32_t(op.value));
    case DType::uint16:
      return fill_with(op.y, uint16_t(op.value));
    case DType::uint8:
      return fill_with(op.y, uint8_t(op.value));
    case DType::fp8_e4m3:
    case DType::fp8_e5m2:
      return fill_with(op.y, to_fp8(float(op.value), fp8_format(op.y.dtype())));
  }
}

void run(const CopyRuns& op) {
  const int64_t size = size_of(op.x.dtype()), runs = op.outer.count * op.inner.count;
  auto* y = static_cast<std::byte*>(op.y.raw());
  const auto* x = static_cast<const std::byte*>(op.x.raw());
  team_loop(runs, runs * op.width > kSerial, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t o = r / op.inner.count, i = r % op.inner.count;
      std::memcpy(y + (o * op.outer.y + i * op.inner.y) * size, x + (o * op.outer.x + i * op.inner.x) * size,
                  size_t(op.width * size));
    }
  });
}

void run(const Axpy& op) { axpy({vec(op.y), vec(op.x), op.y.numel(), op.alpha}); }
void run(const Scale& op) { scale({vec(op.y), vec(op.x), op.y.numel(), op.factor}); }
void run(const SumSquares& op) { sum({vec(op.x), op.x.numel(), true, op.out.as<double>()}); }
void run(const Sum& op) { sum({vec(op.x), op.x.numel(), false, op.out.as<double>()}); }

void run(const RandomFill& op) {
  random_fill({.y = op.y.as<float>(),
               .numel = op.y.numel(),
               .seed = op.philox.seed,
               .stream = op.philox.stream,
               .first = uint64_t(op.first),
               .scale = op.scale,
               .normal = op.normal});
}

}  // namespace cleave::kernels::cpu
