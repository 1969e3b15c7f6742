// Operations and their order equal those of the CPU bodies, so an update has the same bits wherever the
// optimizer state is.
#include "kernels/cuda/update.cuh"

namespace cleave::kernels::gpu {
namespace {

template <class G, class C>
struct AdamStep : UpdateOf<G, C, AdamNumbers> {
  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N], m[N], v[N];
    load(p, this->param + i);
    load(g, this->grad + i);
    load(m, this->states[0] + i);
    load(v, this->states[1] + i);
    const AdamNumbers& n = this->with;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = fmaf(n.inside, p[j], __fmul_rn(g[j], n.scale));
      add(n.averages, g[j], m[j], v[j]);
      const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(v[j], n.c2)), n.eps);
      const float step = __fdiv_rn(__fmul_rn(m[j], n.c1), root);
      p[j] = fmaf(-n.lr, fmaf(n.outside, p[j], step), p[j]);
    }
    store(this->states[0] + i, m);
    store(this->states[1] + i, v);
    store(this->param + i, p);
    if (this->copy) store(this->copy + i, p);
  }
};

template <class G, class C>
struct SgdStep : UpdateOf<G, C, SgdNumbers> {
  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N];
    load(p, this->param + i);
    load(g, this->grad + i);
    const SgdNumbers& n = this->with;
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = fmaf(n.decay, p[j], __fmul_rn(g[j], n.scale));
    if (float* buffer = this->states[0]) {
      float b[N];
      load(b, buffer + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        b[j] = n.first ? g[j] : fmaf(n.momentum, b[j], __fmul_rn(n.damp, g[j]));
        g[j] = n.nesterov ? fmaf(n.momentum, b[j], g[j]) : b[j];
      }
      store(buffer + i, b);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] = fmaf(-n.lr, g[j], p[j]);
    store(this->param + i, p);
    if (this->copy) store(this->copy + i, p);
  }
};

template <class G, class C>
struct LionStep : UpdateOf<G, C, LionNumbers> {
  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N], m[N];
    load(p, this->param + i);
    load(g, this->grad + i);
    load(m, this->states[0] + i);
    const LionNumbers& n = this->with;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = __fmul_rn(g[j], n.scale);
      const float c = fmaf(n.averages.beta1, m[j], __fmul_rn(n.averages.rest1, g[j]));
      const float sign = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
      p[j] = fmaf(-n.lr, sign, __fmul_rn(n.kept, p[j]));
      m[j] = fmaf(n.averages.beta2, m[j], __fmul_rn(n.averages.rest2, g[j]));
    }
    store(this->states[0] + i, m);
    store(this->param + i, p);
    if (this->copy) store(this->copy + i, p);
  }
};

template <class G, class C>
struct AdagradStep : UpdateOf<G, C, AdagradNumbers> {
  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], g[N], s[N];
    load(p, this->param + i);
    load(g, this->grad + i);
    load(s, this->states[0] + i);
    const AdagradNumbers& n = this->with;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = fmaf(n.decay, p[j], __fmul_rn(g[j], n.scale));
      s[j] = fmaf(g[j], g[j], s[j]);
      p[j] = fmaf(-n.lr, __fdiv_rn(g[j], __fadd_rn(__fsqrt_rn(s[j]), n.eps)), p[j]);
    }
    store(this->states[0] + i, s);
    store(this->param + i, p);
    if (this->copy) store(this->copy + i, p);
  }
};

// Runs Step<G, C> for the types of gradient and working copy.
template <template <class, class> class Step, class Op>
void update(const Op& op, const Tensor& first, const Tensor& second, const char* name, Stream& stream) {
  const bool packed = aligned({op.param, first, second, op.copy, op.grad});
  with_type(op.grad.dtype(), [&](auto g) {
    with_type(op.copy.defined() ? op.copy.dtype() : DType::fp32, [&](auto c) {
      using G = decltype(g);
      using C = decltype(c);
      for_each<kPackOf<float>>(cuda_queue(stream), op.param.numel(), packed, name,
                               Step<G, C>{operands_of<G, C>(op, first, second, op.copy, op.grad)});
    });
  });
}

}  // namespace

void run(const Adam& op, Stream& stream) { update<AdamStep>(op, op.m, op.v, "Adam", stream); }
void run(const Sgd& op, Stream& stream) {
  update<SgdStep>(op, op.momentum != 0 ? op.buffer : Tensor(), {}, "Sgd", stream);
}
void run(const Lion& op, Stream& stream) { update<LionStep>(op, op.m, {}, "Lion", stream); }
void run(const Adagrad& op, Stream& stream) { update<AdagradStep>(op, op.sum, {}, "Adagrad", stream); }

}  // namespace cleave::kernels::gpu
