#include "kernels/cpu/parallel.h"

namespace cleave::cpu::CLEAVE_ISA {
namespace {

template <class G, class C, bool kCopy>
void adam_as(const AdamArgs& a) {
  float *param = a.param, *m = a.m, *v = a.v;
  const G* grad = static_cast<const G*>(a.grad.data);
  C* copy = static_cast<C*>(a.copy.data);
  const F16 beta1 = splat(a.beta1), beta2 = splat(a.beta2);
  const F16 rest1 = splat(1.0f - a.beta1), rest2 = splat(1.0f - a.beta2);
  const F16 scale = splat(a.grad_scale), c1 = splat(a.inverse_c1), c2 = splat(a.inverse_c2);
  const F16 eps = splat(a.eps), lr = splat(a.lr);
  const F16 inside = splat(a.decoupled ? 0 : a.weight_decay),
            outside = splat(a.decoupled ? a.weight_decay : 0);
  parallel_vectors(a.numel, [=](int64_t i, auto n) {
    const F16 p = load(param + i, n);
    const F16 g = fma(inside, p, load(grad + i, n) * scale);
    const F16 m1 = fma(beta1, load(m + i, n), rest1 * g);
    const F16 v1 = fma(beta2, load(v + i, n), rest2 * g * g);
    const F16 step = m1 * c1 / (sqrt(v1 * c2) + eps);
    const F16 next = fnma(lr, fma(outside, p, step), p);
    store(m + i, m1, n);
    store(v + i, v1, n);
    store(param + i, next, n);
    if constexpr (kCopy) store(copy + i, next, n);
  });
}

template <class G, class C, bool kCopy>
void sgd_as(const SgdArgs& a) {
  float *param = a.param, *buffer = a.buffer;
  const G* grad = static_cast<const G*>(a.grad.data);
  C* copy = static_cast<C*>(a.copy.data);
  const F16 scale = splat(a.grad_scale), decay = splat(a.weight_decay), lr = splat(a.lr);
  const F16 momentum = splat(a.momentum), damp = splat(1.0f - a.dampening);
  const bool first = a.first, nesterov = a.nesterov;
  parallel_vectors(a.numel, [=](int64_t i, auto n) {
    const F16 p = load(param + i, n);
    F16 g = fma(decay, p, load(grad + i, n) * scale);
    if (buffer) {
      const F16 b = first ? g : fma(momentum, load(buffer + i, n), damp * g);
      store(buffer + i, b, n);
      g = nesterov ? fma(momentum, b, g) : b;
    }
    const F16 next = fnma(lr, g, p);
    store(param + i, next, n);
    if constexpr (kCopy) store(copy + i, next, n);
  });
}

}  // namespace

void adam(const AdamArgs& args) {
  with_type(args.grad.type, [&](auto g) {
    if (!args.copy.data) return adam_as<decltype(g), float, false>(args);
    with_type(args.copy.type, [&](auto c) { adam_as<decltype(g), decltype(c), true>(args); });
  });
}

void sgd(const SgdArgs& args) {
  with_type(args.grad.type, [&](auto g) {
    if (!args.copy.data) return sgd_as<decltype(g), float, false>(args);
    with_type(args.copy.type, [&](auto c) { sgd_as<decltype(g), decltype(c), true>(args); });
  });
}

}  // namespace cleave::cpu::CLEAVE_ISA
