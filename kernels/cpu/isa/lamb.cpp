#include "kernels/cpu/parallel.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

constexpr int64_t kSumBlock = 4096;  // elements per addend of the total
constexpr int64_t kSumGroup = 256;   // blocks at a time
constexpr int64_t kRun = 256;        // elements added in fp32, 16 per lane

struct Squares {
  double param = 0, update = 0;
};

template <class G>
Squares block_moments(const UpdateArgs<LambNumbers>& a, int64_t begin, int64_t end) {
  float *m = a.states[0], *v = a.states[1];
  const G* grad = static_cast<const G*>(a.grad.data);
  const S16 beta1 = splat(a.with.averages.beta1), beta2 = splat(a.with.averages.beta2);
  const S16 rest1 = splat(a.with.averages.rest1), rest2 = splat(a.with.averages.rest2);
  const S16 scale = splat(a.with.scale), eps = splat(a.with.eps), decay = splat(a.with.decay);
  Squares sum;
  for (int64_t first = begin; first < end; first += kRun) {
    F16 params = zero(), updates = zero();
    for_vectors(first, first + kRun < end ? first + kRun : end, [&](int64_t i, auto n) {
      const F16 p = load(a.param + i, n), g = load(grad + i, n) * scale;
      const F16 m1 = fma(beta1, load(m + i, n), rest1 * g);
      const F16 v1 = fma(beta2, load(v + i, n), rest2 * g * g);
      const F16 u = keep(fma(decay, p, m1 / (sqrt(v1) + eps)), n), counted = keep(p, n);
      store(m + i, m1, n);
      store(v + i, v1, n);
      params = fma(counted, counted, params);
      updates = fma(u, u, updates);
    });
    sum.param += double(sum_lanes(params)), sum.update += double(sum_lanes(updates));
  }
  return sum;
}

template <class G>
void moments_as(const LambMomentsArgs& a) {
  Squares partial[kSumGroup];
  for (int64_t first = 0; first < a.of.numel; first += kSumBlock * kSumGroup) {
    const int64_t rest = a.of.numel - first;
    const int64_t numel = rest < kSumBlock * kSumGroup ? rest : kSumBlock * kSumGroup;
    parallel_blocks(numel, kSumBlock, [&](int64_t begin, int64_t end) {
      partial[begin / kSumBlock] = block_moments<G>(a.of, first + begin, first + end);
    });
    for (int64_t b = 0; b * kSumBlock < numel; ++b)
      a.squares[0] += partial[b].param, a.squares[1] += partial[b].update;
  }
}

template <class C, bool kCopy>
void step_as(const UpdateArgs<LambStepNumbers>& a) {
  float* param = a.param;
  const float *m = a.states[0], *v = a.states[1];
  C* copy = static_cast<C*>(a.copy.data);
  const S16 rate = splat(a.with.rate), eps = splat(a.with.eps), decay = splat(a.with.decay);
  parallel_vectors(a.numel, [=](int64_t i, auto n) {
    const F16 p = load(param + i, n);
    const F16 next = fnma(rate, fma(decay, p, load(m + i, n) / (sqrt(load(v + i, n)) + eps)), p);
    store(param + i, next, n);
    if constexpr (kCopy) store(copy + i, next, n);
  });
}

}  // namespace

void lamb_moments(const LambMomentsArgs& args) {
  with_type(args.of.grad.type, [&](auto g) { moments_as<decltype(g)>(args); });
}

void lamb_step(const UpdateArgs<LambStepNumbers>& args) {
  if (!args.copy.data) return step_as<float, false>(args);
  with_type(args.copy.type, [&](auto c) { step_as<decltype(c), true>(args); });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
