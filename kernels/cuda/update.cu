// The operations and their order are those of the CPU bodies, so that the update gives the same bits wherever
// the optimizer state lives.
#include "kernels/update.h"

#include <cmath>

#include "kernels/cuda/moments.cuh"

namespace cleave::kernels::gpu {
namespace {

template <class G, class C>
struct AdamStep {
  float *param, *m, *v;
  C* copy;
  const G* grad;
  MovingAverages averages;
  float lr, eps, inside, outside, scale, c1, c2;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N], m1[N], v1[N];
    load(p, param + i);
    load(g, grad + i);
    load(m1, m + i);
    load(v1, v + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = fmaf(inside, p[j], __fmul_rn(g[j], scale));
      averages.add(g[j], m1[j], v1[j]);
      const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(v1[j], c2)), eps);
      const float step = __fdiv_rn(__fmul_rn(m1[j], c1), root);
      p[j] = fmaf(-lr, fmaf(outside, p[j], step), p[j]);
    }
    store(m + i, m1);
    store(v + i, v1);
    store(param + i, p);
    if (copy) store(copy + i, p);
  }
};

template <class G, class C>
struct SgdStep {
  float *param, *buffer;
  C* copy;
  const G* grad;
  float lr, momentum, damp, decay, scale;
  bool nesterov, first;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N];
    load(p, param + i);
    load(g, grad + i);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = fmaf(decay, p[j], __fmul_rn(g[j], scale));
    if (buffer) {
      float b[N];
      load(b, buffer + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        b[j] = first ? g[j] : fmaf(momentum, b[j], __fmul_rn(damp, g[j]));
        g[j] = nesterov ? fmaf(momentum, b[j], g[j]) : b[j];
      }
      store(buffer + i, b);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] = fmaf(-lr, g[j], p[j]);
    store(param + i, p);
    if (copy) store(copy + i, p);
  }
};

template <class G, class C>
struct LionStep {
  float *param, *m;
  C* copy;
  const G* grad;
  float lr, beta1, beta2, rest1, rest2, kept, scale;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N], m1[N];
    load(p, param + i);
    load(g, grad + i);
    load(m1, m + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = __fmul_rn(g[j], scale);
      const float c = fmaf(beta1, m1[j], __fmul_rn(rest1, g[j]));
      const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
      p[j] = fmaf(-lr, sign, __fmul_rn(kept, p[j]));
      m1[j] = fmaf(beta2, m1[j], __fmul_rn(rest2, g[j]));
    }
    store(m + i, m1);
    store(param + i, p);
    if (copy) store(copy + i, p);
  }
};

template <class G, class C>
struct AdagradStep {
  float *param, *sum;
  C* copy;
  const G* grad;
  float lr, eps, decay, scale;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N], s[N];
    load(p, param + i);
    load(g, grad + i);
    load(s, sum + i);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = fmaf(decay, p[j], __fmul_rn(g[j], scale));
      s[j] = fmaf(g[j], g[j], s[j]);
      p[j] = fmaf(-lr, __fdiv_rn(g[j], __fadd_rn(__fsqrt_rn(s[j]), eps)), p[j]);
    }
    store(sum + i, s);
    store(param + i, p);
    if (copy) store(copy + i, p);
  }
};

// body(G, C) with the types of the gradient and of the working copy.
template <class Op, class Body>
void with_types(const Op& op, Body body) {
  with_type(op.grad.dtype(), [&](auto g) {
    with_type(op.copy.defined() ? op.copy.dtype() : DType::fp32, [&](auto c) { body(g, c); });
  });
}

}  // namespace

void run(const Adam& op, Stream& stream) {
  const double c1 = op.bias_correction ? 1.0 - std::pow(double(op.beta1), double(op.step)) : 1.0;
  const double c2 = op.bias_correction ? 1.0 - std::pow(double(op.beta2), double(op.step)) : 1.0;
  with_types(op, [&](auto g, auto c) {
    using G = decltype(g);
    using C = decltype(c);
    for_each<kPackOf<float>>(cuda_queue(stream), op.param.numel(),
                             aligned({op.param, op.m, op.v, op.copy, op.grad}), "Adam",
                             AdamStep<G, C>{.param = as<float>(op.param),
                                            .m = as<float>(op.m),
                                            .v = as<float>(op.v),
                                            .copy = as<C>(op.copy),
                                            .grad = as<G>(op.grad),
                                            .averages = MovingAverages::of(op),
                                            .lr = op.lr,
                                            .eps = op.eps,
                                            .inside = op.decoupled ? 0 : op.weight_decay,
                                            .outside = op.decoupled ? op.weight_decay : 0,
                                            .scale = op.grad_scale,
                                            .c1 = float(1.0 / c1),
                                            .c2 = float(1.0 / c2)});
  });
}

void run(const Sgd& op, Stream& stream) {
  with_types(op, [&](auto g, auto c) {
    using G = decltype(g);
    using C = decltype(c);
    const Tensor buffer = op.momentum != 0 ? op.buffer : Tensor();
    for_each<kPackOf<float>>(cuda_queue(stream), op.param.numel(),
                             aligned({op.param, buffer, op.copy, op.grad}), "Sgd",
                             SgdStep<G, C>{.param = as<float>(op.param),
                                           .buffer = as<float>(buffer),
                                           .copy = as<C>(op.copy),
                                           .grad = as<G>(op.grad),
                                           .lr = op.lr,
                                           .momentum = op.momentum,
                                           .damp = 1.0f - op.dampening,
                                           .decay = op.weight_decay,
                                           .scale = op.grad_scale,
                                           .nesterov = op.nesterov,
                                           .first = op.first});
  });
}

void run(const Lion& op, Stream& stream) {
  with_types(op, [&](auto g, auto c) {
    using G = decltype(g);
    using C = decltype(c);
    for_each<kPackOf<float>>(cuda_queue(stream), op.param.numel(),
                             aligned({op.param, op.m, op.copy, op.grad}), "Lion",
                             LionStep<G, C>{.param = as<float>(op.param),
                                            .m = as<float>(op.m),
                                            .copy = as<C>(op.copy),
                                            .grad = as<G>(op.grad),
                                            .lr = op.lr,
                                            .beta1 = op.beta1,
                                            .beta2 = op.beta2,
                                            .rest1 = 1.0f - op.beta1,
                                            .rest2 = 1.0f - op.beta2,
                                            .kept = 1.0f - op.lr * op.weight_decay,
                                            .scale = op.grad_scale});
  });
}

void run(const Adagrad& op, Stream& stream) {
  with_types(op, [&](auto g, auto c) {
    using G = decltype(g);
    using C = decltype(c);
    for_each<kPackOf<float>>(cuda_queue(stream), op.param.numel(),
                             aligned({op.param, op.sum, op.copy, op.grad}), "Adagrad",
                             AdagradStep<G, C>{.param = as<float>(op.param),
                                               .sum = as<float>(op.sum),
                                               .copy = as<C>(op.copy),
                                               .grad = as<G>(op.grad),
                                               .lr = op.lr,
                                               .eps = op.eps,
                                               .decay = op.weight_decay,
                                               .scale = op.grad_scale});
  });
}

}  // namespace cleave::kernels::gpu
