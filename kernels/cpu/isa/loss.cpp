#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace cleave::cpu::CLEAVE_ISA {
namespace {

constexpr int32_t kIgnored = -100;

template <class T>
float row_max(const T* x, int64_t numel) {
  F16 even = splat(-__builtin_inff()), odd = even;
  int64_t i = 0;
  for (; i + 32 <= numel; i += 32) {
    even = max(even, load(x + i));
    odd = max(odd, load(x + i + 16));
  }
  for_vectors(i, numel,
              [&](int64_t j, auto n) { even = max(even, keep(load(x + j, n), n, -__builtin_inff())); });
  return max_lanes(max(even, odd));
}

// Sum of e^(x - shift), blocks of 1024 added in double so that a large vocabulary loses nothing.
template <class T>
double row_sum(const T* x, int64_t numel, float shift) {
  double total = 0;
  for (int64_t begin = 0; begin < numel; begin += 1024) {
    F16 sum = zero();
    for_vectors(begin, begin + 1024 < numel ? begin + 1024 : numel,
                [&](int64_t i, auto n) { sum = sum + keep(exp(load(x + i, n) - splat(shift)), n); });
    total += double(sum_lanes(sum));
  }
  return total;
}

template <class T>
void zero_row(T* x, int64_t begin, int64_t end) {
  for_vectors(begin, end, [=](int64_t i, auto n) { store(x + i, zero(), n); });
}

template <class T, class D>
void loss_row(const CrossEntropyArgs& args, int64_t row) {
  const T* x = static_cast<const T*>(args.logits.data) + row * args.columns;
  D* dx = static_cast<D*>(args.dlogits.data) + row * args.columns;
  const int32_t target = args.targets[row];
  if (target == kIgnored) {
    args.losses[row] = 0;
    if (args.scale != 0) zero_row(dx, 0, args.columns);
    return;
  }
  const float top = row_max(x, args.vocab);
  const double sum = row_sum(x, args.vocab, top);
  float hit[16];
  store(hit, load(x + target, Part{1}));
  args.losses[row] = float(__builtin_log(sum) + double(top) - double(hit[0]));
  if (args.scale == 0) return;
  const F16 factor = splat(float(double(args.scale) / sum));
  for_vectors(0, args.vocab,
              [=](int64_t i, auto n) { store(dx + i, exp(load(x + i, n) - splat(top)) * factor, n); });
  const F16 at_target = exp(splat(hit[0] - top)) * factor - splat(args.scale);
  store(dx + target, at_target, Part{1});
  zero_row(dx, args.vocab, args.columns);
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args) {
  with_type(args.logits.type, [&](auto t) {
    with_type(args.dlogits.type, [&](auto d) {
      parallel_rows(args.rows, args.columns,
                    [&](int64_t row) { loss_row<decltype(t), decltype(d)>(args, row); });
    });
  });
}

}  // namespace cleave::cpu::CLEAVE_ISA
