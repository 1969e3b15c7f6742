#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

constexpr int32_t kIgnored = -100;

template <class T>
float logit_of(const T* x) {
  float lanes[16];
  store(lanes, load(x, Part{1}));
  return lanes[0];
}

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

// Sum of e^(x - shift). Blocks of 1024 are added in double, so a large vocabulary keeps its accuracy.
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

struct Scaled {
  double sum;
  float top, scale;
  float cap;  // 0: none
};

// dx = (scale * softmax - onehot) over `vocab` columns, through the cap; target < 0: in another part.
template <bool kCapped, class T, class D>
void gradient_columns(D* dx, const T* x, int64_t vocab, int64_t target, const Scaled& s) {
  const S16 factor = splat(float(double(s.scale) / s.sum)), top = splat(s.top),
            inverse = splat(kCapped ? 1.0f / s.cap : 0.0f);
  const auto through = [=](F16 d, F16 z) {
    if constexpr (!kCapped) return d;
    const F16 t = z * inverse;
    return d * fnma(t, t, F16(splat(1.0f)));
  };
  F16 hit = zero();  // read before dx is written, which may be x
  if (target >= 0) {
    const F16 z = load(x + target, Part{1});
    hit = through(exp(z - top) * factor - splat(s.scale), z);
  }
  for_vectors(0, vocab, [=](int64_t i, auto n) {
    const F16 z = load(x + i, n);
    store(dx + i, through(exp(z - top) * factor, z), n);
  });
  if (target >= 0) store(dx + target, hit, Part{1});
}

template <class T, class D>
void gradient_row(D* dx, const T* x, int64_t columns, int64_t vocab, int64_t target, const Scaled& s) {
  if (s.cap > 0)
    gradient_columns<true>(dx, x, vocab, target, s);
  else
    gradient_columns<false>(dx, x, vocab, target, s);
  zero_row(dx, vocab, columns);
}

// Result of a row without a target.
template <class Args, class D>
void pass_over(const Args& args, int64_t row, D* dx) {
  args.losses[row] = 0;
  if (args.hits) args.hits[row] = 0;
  if (args.scale != 0) zero_row(dx, 0, args.columns);
}

// Returns 1 if x[target] = `logit` is the first maximum. `top` is the maximum of all parts, `before` the
// maximum of the parts before x.
template <class T>
float hit(const T* x, int64_t target, float logit, float top, float before) {
  return logit == top && before < logit && row_max(x, target) < logit ? 1 : 0;
}

template <class T, class D>
void loss_row(const CrossEntropyArgs& args, int64_t row) {
  const T* x = static_cast<const T*>(args.logits.data) + row * args.columns;
  D* dx = static_cast<D*>(args.dlogits.data) + row * args.columns;
  const int32_t target = args.targets[row];
  if (target == kIgnored) return pass_over(args, row, dx);
  const float top = row_max(x, args.vocab);
  const double sum = row_sum(x, args.vocab, top);
  const float logit = logit_of(x + target);
  const float loss = args.losses[row] = float(__builtin_log(sum) + double(top) - double(logit));
  if (args.hits) args.hits[row] = loss == loss ? hit(x, target, logit, top, -__builtin_inff()) : 0;
  if (args.scale == 0) return;
  gradient_row(dx, x, args.columns, args.vocab, target, {sum, top, args.scale, args.cap});
}

template <class T>
void part_row(const SoftmaxPartArgs& args, int64_t row) {
  const T* x = static_cast<const T*>(args.logits.data) + row * args.columns;
  float* stats = args.stats + 3 * row;
  const int64_t target = args.targets[row] - args.first;
  stats[0] = row_max(x, args.vocab), stats[1] = 0;
  stats[2] = target >= 0 && target < args.vocab ? logit_of(x + target) : 0;
  if (args.vocab > 0) stats[1] = float(row_sum(x, args.vocab, stats[0]));
}

template <class T, class D>
void part_loss_row(const SoftmaxPartArgs& args, int64_t row) {
  const T* x = static_cast<const T*>(args.logits.data) + row * args.columns;
  D* dx = static_cast<D*>(args.dlogits.data) + row * args.columns;
  if (args.targets[row] == kIgnored) return pass_over(args, row, dx);
  float top = -__builtin_inff(), before = top;
  double sum = 0, logit = 0;
  const auto part = [&](int64_t p) { return args.stats + 3 * (p * args.rows + row); };
  for (int64_t p = 0; p < args.parts; ++p) {
    if (p == args.part) before = top;
    top = part(p)[0] > top ? part(p)[0] : top;
  }
  for (int64_t p = 0; p < args.parts; ++p) {
    if (part(p)[1] != 0) sum += double(part(p)[1]) * __builtin_exp(double(part(p)[0]) - double(top));
    logit += double(part(p)[2]);
  }
  const float loss = args.losses[row] = float(__builtin_log(sum) + double(top) - logit);
  const int64_t target = args.targets[row] - args.first;
  const bool here = target >= 0 && target < args.vocab && loss == loss;
  if (args.hits) args.hits[row] = here ? hit(x, target, logit_of(x + target), top, before) : 0;
  if (args.scale == 0) return;
  gradient_row(dx, x, args.columns, args.vocab, target < args.vocab ? target : -1,
               {sum, top, args.scale, args.cap});
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

void softmax_part(const SoftmaxPartArgs& args) {
  with_type(args.logits.type, [&](auto t) {
    parallel_rows(args.rows, args.columns, [&](int64_t row) { part_row<decltype(t)>(args, row); });
  });
}

void cross_entropy_part(const SoftmaxPartArgs& args) {
  with_type(args.logits.type, [&](auto t) {
    with_type(args.dlogits.type, [&](auto d) {
      parallel_rows(args.rows, args.columns,
                    [&](int64_t row) { part_loss_row<decltype(t), decltype(d)>(args, row); });
    });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
