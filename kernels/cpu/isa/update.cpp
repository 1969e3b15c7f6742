#include "kernels/cpu/parallel.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

template <class G, class C, bool kCopy>
void adam_as(const UpdateArgs<AdamNumbers>& a) {
  float *param = a.param, *m = a.states[0], *v = a.states[1];
  const G* grad = static_cast<const G*>(a.grad.data);
  C* copy = static_cast<C*>(a.copy.data);
  const S16 beta1 = splat(a.with.averages.beta1), beta2 = splat(a.with.averages.beta2);
  const S16 rest1 = splat(a.with.averages.rest1), rest2 = splat(a.with.averages.rest2);
  const S16 scale = splat(a.with.scale), c1 = splat(a.with.c1), c2 = splat(a.with.c2);
  const S16 eps = splat(a.with.eps), lr = splat(a.with.lr);
  const S16 inside = splat(a.with.inside), outside = splat(a.with.outside);
  parallel_vectors(a.numel, [=](int64_t i, auto n) {
    prefetch(i, param, m, v, grad);
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
void sgd_as(const UpdateArgs<SgdNumbers>& a) {
  float *param = a.param, *buffer = a.states[0];
  const G* grad = static_cast<const G*>(a.grad.data);
  C* copy = static_cast<C*>(a.copy.data);
  const S16 scale = splat(a.with.scale), decay = splat(a.with.decay), lr = splat(a.with.lr);
  const S16 momentum = splat(a.with.momentum), damp = splat(a.with.damp);
  const bool first = a.with.first, nesterov = a.with.nesterov;
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

template <class G, class C, bool kCopy>
void lion_as(const UpdateArgs<LionNumbers>& a) {
  float *param = a.param, *m = a.states[0];
  const G* grad = static_cast<const G*>(a.grad.data);
  C* copy = static_cast<C*>(a.copy.data);
  const S16 beta1 = splat(a.with.averages.beta1), beta2 = splat(a.with.averages.beta2);
  const S16 rest1 = splat(a.with.averages.rest1), rest2 = splat(a.with.averages.rest2);
  const S16 scale = splat(a.with.scale), lr = splat(a.with.lr), kept = splat(a.with.kept);
  const S16 none = zero(), up = splat(1.0f), down = splat(-1.0f);
  parallel_vectors(a.numel, [=](int64_t i, auto n) {
    const F16 g = load(grad + i, n) * scale, before = load(m + i, n);
    const F16 c = fma(beta1, before, rest1 * g);
    const F16 sign = select(none < c, up, select(c < none, down, none));
    const F16 next = fnma(lr, sign, kept * load(param + i, n));
    store(m + i, fma(beta2, before, rest2 * g), n);
    store(param + i, next, n);
    if constexpr (kCopy) store(copy + i, next, n);
  });
}

template <class G, class C, bool kCopy>
void adagrad_as(const UpdateArgs<AdagradNumbers>& a) {
  float *param = a.param, *sum = a.states[0];
  const G* grad = static_cast<const G*>(a.grad.data);
  C* copy = static_cast<C*>(a.copy.data);
  const S16 scale = splat(a.with.scale), decay = splat(a.with.decay), lr = splat(a.with.lr);
  const S16 eps = splat(a.with.eps);
  parallel_vectors(a.numel, [=](int64_t i, auto n) {
    const F16 p = load(param + i, n);
    const F16 g = fma(decay, p, load(grad + i, n) * scale);
    const F16 s = fma(g, g, load(sum + i, n));
    const F16 next = fnma(lr, g / (sqrt(s) + eps), p);
    store(sum + i, s, n);
    store(param + i, next, n);
    if constexpr (kCopy) store(copy + i, next, n);
  });
}

// Instantiates body<gradient type, copy type, has copy>.
#define CLEAVE_UPDATE(body, args)                                                           \
  with_type(args.grad.type, [&](auto g) {                                                   \
    if (!args.copy.data) return body<decltype(g), float, false>(args);                      \
    with_type(args.copy.type, [&](auto c) { body<decltype(g), decltype(c), true>(args); }); \
  })

}  // namespace

void adam(const UpdateArgs<AdamNumbers>& args) { CLEAVE_UPDATE(adam_as, args); }
void sgd(const UpdateArgs<SgdNumbers>& args) { CLEAVE_UPDATE(sgd_as, args); }
void lion(const UpdateArgs<LionNumbers>& args) { CLEAVE_UPDATE(lion_as, args); }
void adagrad(const UpdateArgs<AdagradNumbers>& args) { CLEAVE_UPDATE(adagrad_as, args); }

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
