// Sums are partial sums of 2048 elements in double, then summed in a fixed pattern; the moments have the
// CPU's bits.
#include "kernels/cuda/update.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 256, kLastThreads = 1024, kBlock = kThreads * kPack;

// Update of a parameter with its moments; used by both passes.
__device__ __forceinline__ float update_of(float p, float m, float v, float eps, float decay) {
  return fmaf(decay, p, __fdiv_rn(m, __fadd_rn(__fsqrt_rn(v), eps)));
}

template <class G>
struct Moments : UpdateOf<G, float, LambNumbers> {
  template <int N>
  __device__ void operator()(int64_t i, Count<N>, double& params, double& updates) const {
    float p[N], g[N], m[N], v[N];
    load(p, this->param + i);
    load(g, this->grad + i);
    load(m, this->states[0] + i);
    load(v, this->states[1] + i);
    const LambNumbers& n = this->with;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = __fmul_rn(g[j], n.scale);
      add(n.averages, g[j], m[j], v[j]);
      const double u = update_of(p[j], m[j], v[j], n.eps, n.decay);
      params = fma(double(p[j]), double(p[j]), params);
      updates = fma(u, u, updates);
    }
    store(this->states[0] + i, m);
    store(this->states[1] + i, v);
  }
};

// Without the 4, the assembler of CUDA 12.0 limits registers and spills them.
template <class F>
__global__ void __launch_bounds__(kThreads, 4)
    moments_kernel(double2* partial, int64_t numel, bool packed, F f) {
  __shared__ double shared[kThreads / 32];
  double params = 0, updates = 0;
  const int64_t begin = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kPack;
  if (packed && begin + kPack <= numel) {
    f(begin, Count<kPack>{}, params, updates);
  } else {
    for (int64_t i = begin; i < begin + kPack && i < numel; ++i) f(i, Count<1>{}, params, updates);
  }
  params = block_sum(params, shared);
  updates = block_sum(updates, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = {params, updates};
}

__global__ void __launch_bounds__(kLastThreads)
    add_partials(double* squares, const double2* partial, int64_t count) {
  __shared__ double shared[kLastThreads / 32];
  double params = 0, updates = 0;
  for (int64_t i = threadIdx.x; i < count; i += kLastThreads) params += partial[i].x, updates += partial[i].y;
  params = block_sum(params, shared);
  updates = block_sum(updates, shared);
  if (threadIdx.x == 0) squares[0] += params, squares[1] += updates;
}

template <class C>
struct Step : UpdateOf<float, C, LambStepNumbers> {
  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    float p[N], m[N], v[N];
    load(p, this->param + i);
    load(m, this->states[0] + i);
    load(v, this->states[1] + i);
    const LambStepNumbers& n = this->with;
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] = fmaf(-n.rate, update_of(p[j], m[j], v[j], n.eps, n.decay), p[j]);
    store(this->param + i, p);
    if (this->copy) store(this->copy + i, p);
  }
};

}  // namespace

void run(const LambMoments& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  const int64_t numel = op.param.numel(), blocks = ceil_div(numel, kBlock);
  if (blocks == 0) return;
  auto* partial = static_cast<double2*>(queue.scratch(blocks * int64_t(sizeof(double2))));
  with_type(op.grad.dtype(), [&](auto g) {
    using G = decltype(g);
    const Moments<G> body{operands_of<G, float>(op, op.m, op.v, {}, op.grad)};
    moments_kernel<<<unsigned(blocks), kThreads, 0, queue.use()>>>(
        partial, numel, aligned({op.param, op.m, op.v, op.grad}), body);
  });
  add_partials<<<1, kLastThreads, 0, queue.use()>>>(as<double>(op.squares), partial, blocks);
  queue.launched("LambMoments");
}

void run(const LambStep& op, Stream& stream) {
  with_type(op.copy.defined() ? op.copy.dtype() : DType::fp32, [&](auto c) {
    using C = decltype(c);
    for_each<kPackOf<float>>(cuda_queue(stream), op.param.numel(), aligned({op.param, op.m, op.v, op.copy}),
                             "LambStep", Step<C>{operands_of<float, C>(op, op.m, op.v, op.copy, {})});
  });
}

}  // namespace cleave::kernels::gpu
