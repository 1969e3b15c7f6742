#include "kernels/loss.h"

#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int32_t kIgnored = -100;

// The largest of some numbers and the sum of e^(number - largest). Of no numbers, or of such as are not, the
// largest is -inf and the sum 0 or NaN, which has to reach the loss.
struct Softmax {
  float top, sum;

  // What is taken from exponents; not -inf, from which -inf cannot be taken.
  __device__ float base() const { return top == -INFINITY ? 0.0f : top; }
  __device__ float sum_from(float base) const { return sum * expf(top - base); }
};

__device__ __forceinline__ Softmax joined(Softmax a, Softmax b) {
  Softmax both{fmaxf(a.top, b.top), 0.0f};
  both.sum = a.sum_from(both.base()) + b.sum_from(both.base());
  return both;
}

// Of tokens [first, first + vocab); a target counts when it is in [0, all_vocab). stats is [rows, 3] to write
// or [parts, rows, 3] to read, and null where one op sees the whole vocabulary.
template <class T, class D>
struct Loss {
  const T* logits;
  D* dlogits;
  float *losses, *stats, *hits;  // hits may be null
  const int32_t* targets;
  int64_t rows, parts, part, first, all_vocab;
  int columns, vocab;
  float scale, inverse_cap;  // the second 0 without a cap
  unsigned long long* fault;

  __device__ const T* x() const { return logits + int64_t(blockIdx.x) * columns; }
  __device__ D* dx() const { return dlogits + int64_t(blockIdx.x) * columns; }
  __device__ int64_t target() const { return targets[blockIdx.x] - first; }
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

template <class T>
__device__ __forceinline__ Softmax softmax_of(const T* x, int vocab, int first, Softmax* shared) {
  Softmax mine{-INFINITY, 0.0f};
  walk(first, vocab, [&](int i, auto n) {
    float v[n.value];
    load(v, x + i);
    Softmax next = mine;
#pragma unroll
    for (int j = 0; j < n.value; ++j) next.top = fmaxf(next.top, v[j]);
    const float base = next.base();
    next.sum = mine.sum_from(base);
#pragma unroll
    for (int j = 0; j < n.value; ++j) next.sum += exponential<T>(v[j] - base);
    mine = next;
  });
  return reduce(mine, shared);
}

// Finishes a row without a loss, ignored or at fault; else answers false.
template <class T, class D>
__device__ __forceinline__ bool passed_over(const Loss<T, D>& a) {
  const int64_t row = blockIdx.x;
  const int32_t target = a.targets[row];
  if (target >= 0 && target < a.all_vocab) return false;
  if (threadIdx.x == 0) {
    a.losses[row] = 0;
    if (a.hits) a.hits[row] = 0;
    if (target != kIgnored)
      atomicMin(a.fault, static_cast<unsigned long long>(row) << 32 | static_cast<uint32_t>(target));
  }
  if (a.scale != 0)
    for (int i = threadIdx.x; i < a.columns; i += kThreads) a.dx()[i] = rounded<D>(0.0f);
  return true;
}

// The row's hit: 1 where the target's logit is the largest, `before` and all logits in front of it are
// smaller, and the loss, which thread 0 has written, is a number. Logits may be overwritten behind it.
template <class T, class D>
__device__ __forceinline__ void finish_hit(const Loss<T, D>& a, float top, float logit, float before) {
  const int64_t target = a.target();
  const bool largest = target >= 0 && target < a.vocab && logit == top && before < logit;
  float* hit = a.hits + blockIdx.x;
  if (threadIdx.x == 0) *hit = largest && !isnan(a.losses[blockIdx.x]) ? 1.0f : 0.0f;
  __syncthreads();
  const T* x = a.x();
  for (int i = threadIdx.x; largest && i < target; i += kThreads)
    if (to_float(x[i]) == logit) *hit = 0.0f;
  __syncthreads();
}

// The row's loss, hit and gradient, `whole` and `logit`, the target's, being of all parts, and `before` the
// largest logit of the parts before this one.
template <class T, class D>
__device__ __forceinline__ void finish(const Loss<T, D>& a, Softmax whole, float logit, float before,
                                       int first) {
  if (threadIdx.x == 0)
    a.losses[blockIdx.x] = float(log(double(whole.sum)) + double(whole.top) - double(logit));
  if (a.hits) finish_hit(a, whole.top, logit, before);
  if (a.scale == 0) return;
  const float factor = a.scale / whole.sum;
  const int64_t target = a.target();
  const T* x = a.x();
  D* dx = a.dx();
  walk(first, a.vocab, [&](int i, auto n) {
    float v[n.value];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) {
      const float d = exponential<D>(v[j] - whole.top) * factor - (i + j == target ? a.scale : 0.0f);
      const float t = v[j] * a.inverse_cap;
      v[j] = a.inverse_cap > 0 ? d * fmaf(-t, t, 1.0f) : d;
    }
    store(dx + i, v);
  });
  for (int i = a.vocab + int(threadIdx.x); i < a.columns; i += kThreads) dx[i] = rounded<D>(0.0f);
}

// One block a row: one pass for the softmax's denominator, one for the gradient, which finds the row in the
// cache.
template <class T, class D>
__global__ void __launch_bounds__(kThreads) cross_entropy(Loss<T, D> a) {
  __shared__ Softmax shared[kThreads / 32];
  if (passed_over(a)) return;
  const int first = peel(a.x(), a.dx());
  const float logit = to_float(a.x()[a.target()]);
  // Its barrier also comes after every read of the target's logit.
  finish(a, softmax_of(a.x(), a.vocab, first, shared), logit, -INFINITY, first);
}

template <class T>
__global__ void __launch_bounds__(kThreads) softmax_part(Loss<T, T> a) {
  __shared__ Softmax shared[kThreads / 32];
  const T* x = a.x();
  const Softmax part = softmax_of(x, a.vocab, peel(x, x), shared);
  if (threadIdx.x > 0) return;
  const int64_t target = a.target();
  float* stats = a.stats + 3 * int64_t(blockIdx.x);
  stats[0] = part.top, stats[1] = part.sum;
  stats[2] = target >= 0 && target < a.vocab ? to_float(x[target]) : 0.0f;
}

// Every thread joins the parts, in their order.
template <class T, class D>
__global__ void __launch_bounds__(kThreads) cross_entropy_part(Loss<T, D> a) {
  if (passed_over(a)) return;
  Softmax whole{-INFINITY, 0.0f};
  float logit = 0, before = -INFINITY;
  for (int64_t p = 0; p < a.parts; ++p) {
    const float* stats = a.stats + 3 * (p * a.rows + blockIdx.x);
    if (p == a.part) before = whole.top;
    whole = joined(whole, {stats[0], stats[1]});
    logit += stats[2];
  }
  finish(a, whole, logit, before, peel(a.x(), a.dx()));
}

// What the three ops have in common.
template <class T, class D, class Op>
Loss<T, D> loss_of(const Op& op) {
  Loss<T, D> a{};
  a.logits = as<T>(op.logits);
  a.targets = as<int32_t>(op.targets);
  a.rows = op.logits.dim(0), a.columns = int(op.logits.dim(1)), a.vocab = int(op.vocab);
  return a;
}

// launch_of(args) for the types of logits and dlogits.
template <class Op, class Launch>
void with_loss(CudaQueue& queue, const Op& op, int64_t all_vocab, Launch launch_of) {
  const Tensor& dlogits = op.dlogits.defined() ? op.dlogits : op.logits;
  with_type(op.logits.dtype(), [&](auto t) {
    with_type(dlogits.dtype(), [&](auto d) {
      using D = decltype(d);
      auto args = loss_of<decltype(t), D>(op);
      args.dlogits = as<D>(dlogits), args.losses = as<float>(op.losses);
      args.hits = op.hits.defined() ? as<float>(op.hits) : nullptr;
      args.all_vocab = all_vocab, args.scale = op.scale;
      args.inverse_cap = op.cap > 0 ? 1.0f / op.cap : 0.0f;
      args.fault = queue.fault(Fault::target, all_vocab);
      launch_of(args);
    });
  });
}

}  // namespace

void run(const CrossEntropy& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0);
  if (rows == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  with_loss(queue, op, op.vocab,
            [&](auto args) { cross_entropy<<<unsigned(rows), kThreads, 0, queue.use()>>>(args); });
  queue.launched("CrossEntropy");
}

void run(const SoftmaxPart& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0);
  if (rows == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  with_type(op.logits.dtype(), [&](auto t) {
    using T = decltype(t);
    auto args = loss_of<T, T>(op);
    args.stats = as<float>(op.stats), args.first = op.first;
    softmax_part<<<unsigned(rows), kThreads, 0, queue.use()>>>(args);
  });
  queue.launched("SoftmaxPart");
}

void run(const CrossEntropyPart& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0);
  if (rows == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  with_loss(queue, op, op.all_vocab, [&](auto args) {
    args.stats = as<float>(op.stats), args.parts = op.stats.dim(0), args.first = op.first;
    args.part = op.part;
    cross_entropy_part<<<unsigned(rows), kThreads, 0, queue.use()>>>(args);
  });
  queue.launched("CrossEntropyPart");
}

}  // namespace cleave::kernels::gpu
