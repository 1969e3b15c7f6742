#include "kernels/loss.h"

#include "kernels/cuda/device.cuh"

namespace cleave::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int32_t kIgnored = -100;

// The largest of some numbers and the sum of e^(number - largest).
struct Softmax {
  float top, sum;
};

__device__ __forceinline__ Softmax joined(Softmax a, Softmax b) {
  const float top = fmaxf(a.top, b.top);
  if (top == -INFINITY) return {top, 0.0f};
  return {top, a.sum * expf(a.top - top) + b.sum * expf(b.top - top)};
}

template <class T, class D>
struct Loss {
  const T* logits;
  D* dlogits;
  float* losses;
  const int32_t* targets;
  int columns, vocab;
  float scale;
  unsigned long long* fault;
};

// body(i, Count<N>) for this thread's share of [0, end): packs where `first` elements are peeled off so that
// they are aligned, single elements where first is negative.
template <class Body>
__device__ __forceinline__ void walk(int first, int end, Body body) {
  if (first < 0) {
    for (int i = threadIdx.x; i < end; i += kThreads) body(i, Count<1>{});
    return;
  }
  for (int i = threadIdx.x; i < first && i < end; i += kThreads) body(i, Count<1>{});
  const int packs = end > first ? (end - first) / kPack : 0;
  for (int p = threadIdx.x; p < packs; p += kThreads) body(first + p * kPack, Count<kPack>{});
  for (int i = first + packs * kPack + int(threadIdx.x); i < end; i += kThreads) body(i, Count<1>{});
}

// Elements before the first 16-byte boundary, when all packs after it are aligned in both arrays; else
// negative.
template <class T, class D>
__device__ __forceinline__ int peel(const T* x, const D* dx) {
  const int first = int((16 - reinterpret_cast<uintptr_t>(x) % 16) % 16 / sizeof(T));
  return reinterpret_cast<uintptr_t>(dx + first) % 16 == 0 ? first : -1;
}

__device__ __forceinline__ Softmax reduce(Softmax mine, Softmax* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Softmax other{__shfl_xor_sync(0xffffffffu, mine.top, step),
                        __shfl_xor_sync(0xffffffffu, mine.sum, step)};
    mine = joined(mine, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = shared[0];
  for (int w = 1; w < kThreads / 32; ++w) mine = joined(mine, shared[w]);
  return mine;
}

// One block a row: one pass for the softmax's denominator, one for the gradient, which finds the row in the
// cache.
template <class T, class D>
__global__ void __launch_bounds__(kThreads) cross_entropy(Loss<T, D> a) {
  __shared__ Softmax shared[kThreads / 32];
  const int64_t row = blockIdx.x;
  const T* x = a.logits + row * a.columns;
  D* dx = a.dlogits + row * a.columns;
  const int target = a.targets[row];
  const bool valid = target >= 0 && target < a.vocab;
  if (!valid) {
    if (threadIdx.x == 0) {
      a.losses[row] = 0;
      if (target != kIgnored)
        atomicMin(a.fault, static_cast<unsigned long long>(row) << 32 | static_cast<uint32_t>(target));
    }
    if (a.scale != 0)
      for (int i = threadIdx.x; i < a.columns; i += kThreads) dx[i] = rounded<D>(0.0f);
    return;
  }
  const int first = peel(x, dx);
  const float hit = to_float(x[target]);
  Softmax mine{-INFINITY, 0.0f};
  walk(first, a.vocab, [&](int i, auto n) {
    float v[n.value];
    load(v, x + i);
    float top = mine.top;
#pragma unroll
    for (int j = 0; j < n.value; ++j) top = fmaxf(top, v[j]);
    float sum = mine.top == -INFINITY ? 0.0f : mine.sum * expf(mine.top - top);
#pragma unroll
    for (int j = 0; j < n.value; ++j) sum += expf(v[j] - top);
    mine = {top, sum};
  });
  const Softmax whole = reduce(mine, shared);  // its barrier also comes after every read of hit
  if (threadIdx.x == 0) a.losses[row] = float(log(double(whole.sum)) + double(whole.top) - double(hit));
  if (a.scale == 0) return;
  const float factor = a.scale / whole.sum;
  walk(first, a.vocab, [&](int i, auto n) {
    float v[n.value];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j)
      v[j] = expf(v[j] - whole.top) * factor - (i + j == target ? a.scale : 0.0f);
    store(dx + i, v);
  });
  for (int i = a.vocab + int(threadIdx.x); i < a.columns; i += kThreads) dx[i] = rounded<D>(0.0f);
}

}  // namespace

void run(const CrossEntropy& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0);
  if (rows == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  const Tensor& dlogits = op.dlogits.defined() ? op.dlogits : op.logits;
  with_type(op.logits.dtype(), [&](auto t) {
    with_type(dlogits.dtype(), [&](auto d) {
      using T = decltype(t);
      using D = decltype(d);
      const Loss<T, D> args{as<T>(op.logits),
                            as<D>(dlogits),
                            as<float>(op.losses),
                            as<int32_t>(op.targets),
                            int(op.logits.dim(1)),
                            int(op.vocab),
                            op.scale,
                            queue.fault(Fault::target, op.vocab)};
      cross_entropy<T, D><<<unsigned(rows), kThreads, 0, queue.use()>>>(args);
    });
  });
  queue.launched("CrossEntropy");
}

}  // namespace cleave::gpu
