#include "kernels/loss.h"

#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int32_t kIgnored = -100;

// The maximum of some numbers and the sum of e^(number - maximum). For no numbers or NaN the maximum is -inf
// and the sum 0 or NaN, which must propagate to the loss.
struct Softmax {
  float top, sum;

  // Value to subtract from exponents; never -inf, because -inf - -inf is NaN.
  __device__ float base() const { return top == -INFINITY ? 0.0f : top; }
  __device__ float sum_from(float base) const { return sum * expf(top - base); }
};

__device__ __forceinline__ Softmax joined(Softmax a, Softmax b) {
  Softmax both{fmaxf(a.top, b.top), 0.0f};
  both.sum = a.sum_from(both.base()) + b.sum_from(both.base());
  return both;
}

// Arguments for tokens [first, first + vocab); targets in [0, all_vocab) count. stats is [rows, 3] to write
// or [parts, rows, 3] to read, and null if one op has the whole vocabulary.
template <class T, class D>
struct Loss {
  const T* logits;
  D* dlogits;
  float *losses, *stats, *hits;  // hits may be null
  const int32_t* targets;
  int64_t rows, parts, part, first, all_vocab;
  int columns, vocab;
  float scale, inverse_cap;  // inverse_cap: 0 without a cap
  unsigned long long* fault;

  __device__ const T* x() const { return logits + int64_t(blockIdx.x) * columns; }
  __device__ D* dx() const { return dlogits + int64_t(blockIdx.x) * columns; }
  __device__ int64_t target() const { return targets[blockIdx.x] - first; }
};

// Calls body(i, Count<N>) for this thread's share of [0, end): aligned packs after peeling off `first`
// elements, single elements if first is negative.
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

// Number of elements before the first 16-byte boundary if all later packs are aligned in both arrays; else
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

// A row of logits that a block reads twice. It may be kept in shared memory, where every thread reads back
// its own elements, because the active rows of a GPU would exceed its cache.
template <class T, bool kKeeps>
struct Row {
  const T* x;
  T* kept;  // element i at i, packs aligned like those of x

  template <int N>
  __device__ __forceinline__ void first_time(float (&v)[N], int i) const {
    if constexpr (!kKeeps) {
      load(v, x + i);
    } else if constexpr (N == 1) {
      v[0] = to_float(kept[i] = x[i]);
    } else {
      static_assert(N * sizeof(T) == sizeof(uint4));
      alignas(16) T bits[N];
      const uint4 word = *reinterpret_cast<uint4*>(bits) = *reinterpret_cast<const uint4*>(x + i);
      *reinterpret_cast<uint4*>(kept + i) = word;
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = to_float(bits[j]);
    }
  }
  template <int N>
  __device__ __forceinline__ void again(float (&v)[N], int i) const {
    load(v, (kKeeps ? kept : x) + i);
  }
};

template <class T, bool kKeeps>
__device__ __forceinline__ Softmax softmax_of(const Row<T, kKeeps>& row, int vocab, int first,
                                              Softmax* shared) {
  Softmax mine{-INFINITY, 0.0f};
  walk(first, vocab, [&](int i, auto n) {
    float v[n.value];
    row.first_time(v, i);
    Softmax next = mine;
#pragma unroll
    for (int j = 0; j < n.value; ++j) next.top = fmaxf(next.top, v[j]);
    const float base = next.base();
    if (next.top != mine.top) next.sum = mine.sum_from(base);  // most packs have no new maximum
#pragma unroll
    for (int j = 0; j < n.value; ++j) next.sum += exponential<T>(v[j] - base);
    mine = next;
  });
  return reduce(mine, shared);
}

// Finishes a row without a loss (ignored or invalid target) and returns true; else returns false.
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

// Writes the row's hit: 1 if the target's logit is the maximum, `before` and all logits before it are
// smaller, and the loss, which thread 0 has written, is not NaN. Logits may be overwritten afterwards.
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

// Gradient of a logit v: e^(v - top) times `factor`, minus `hit` for the target; multiplied by the slope of
// the cap with this inverse.
template <bool kCapped, class D>
__device__ __forceinline__ float gradient(float v, float top, float factor, float hit, float inverse_cap) {
  const float d = fmaf(exponential<D>(v - top), factor, -hit), t = v * inverse_cap;
  return kCapped ? d * fmaf(-t, t, 1.0f) : d;
}

// Writes the gradient of a row; `logit` is the target's logit.
template <bool kCapped, class T, class D, bool kKeeps>
__device__ __forceinline__ void write_gradient(const Loss<T, D>& a, const Row<T, kKeeps>& row, Softmax whole,
                                               float logit, int first) {
  const float factor = a.scale / whole.sum;
  const int64_t target = a.target();
  D* dx = a.dx();
  walk(first, a.vocab, [&](int i, auto n) {
    float v[n.value];
    row.again(v, i);
#pragma unroll
    for (int j = 0; j < n.value; ++j)
      v[j] = gradient<kCapped, D>(v[j], whole.top, factor, 0.0f, a.inverse_cap);
    store(dx + i, v);
  });
  for (int i = a.vocab + int(threadIdx.x); i < a.columns; i += kThreads) dx[i] = rounded<D>(0.0f);
  if (target < 0 || target >= a.vocab) return;
  __syncthreads();  // after the thread that wrote the target's element as a non-target
  if (threadIdx.x == 0)
    dx[target] = rounded<D>(gradient<kCapped, D>(logit, whole.top, factor, a.scale, a.inverse_cap));
}

// Writes the row's loss, hit and gradient. `whole` and the target's `logit` are of all parts; `before` is the
// largest logit of the parts before this one.
template <class T, class D, bool kKeeps>
__device__ __forceinline__ void finish(const Loss<T, D>& a, const Row<T, kKeeps>& row, Softmax whole,
                                       float logit, float before, int first) {
  if (threadIdx.x == 0)
    a.losses[blockIdx.x] = float(log(double(whole.sum)) + double(whole.top) - double(logit));
  if (a.hits) finish_hit(a, whole.top, logit, before);
  if (a.scale == 0) return;
  if (a.inverse_cap > 0)
    write_gradient<true>(a, row, whole, logit, first);
  else
    write_gradient<false>(a, row, whole, logit, first);
}

// Bytes of shared memory for a kept row.
template <class T>
int64_t bytes_to_keep(int64_t vocab) {
  return (vocab + 2 * kPack) * int64_t(sizeof(T));
}

// One block per row: one pass for the softmax denominator, one for the gradient.
template <class T, class D, bool kKeeps>
__global__ void __launch_bounds__(kThreads) cross_entropy(Loss<T, D> a) {
  __shared__ Softmax shared[kThreads / 32];
  extern __shared__ __align__(16) unsigned char room[];
  if (passed_over(a)) return;
  const int first = peel(a.x(), a.dx());
  const Row<T, kKeeps> row{a.x(), reinterpret_cast<T*>(room) + kPack - (first > 0 ? first : 0)};
  const float logit = to_float(a.x()[a.target()]);
  // The barrier inside also follows every read of the target's logit.
  const Softmax whole = softmax_of(row, a.vocab, first, shared);
  finish(a, row, whole, logit, -INFINITY, first);
}

template <class T>
__global__ void __launch_bounds__(kThreads) softmax_part(Loss<T, T> a) {
  __shared__ Softmax shared[kThreads / 32];
  const T* x = a.x();
  const Softmax part = softmax_of(Row<T, false>{x, nullptr}, a.vocab, peel(x, x), shared);
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
  finish(a, Row<T, false>{a.x(), nullptr}, whole, logit, before, peel(a.x(), a.dx()));
}

// Shared arguments of the three ops.
template <class T, class D, class Op>
Loss<T, D> loss_of(const Op& op) {
  Loss<T, D> a{};
  a.logits = as<T>(op.logits);
  a.targets = as<int32_t>(op.targets);
  a.rows = op.logits.dim(0), a.columns = int(op.logits.dim(1)), a.vocab = int(op.vocab);
  return a;
}

// Calls launch_of(args) for the types of logits and dlogits.
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

// Keeps the row in shared memory if a multiprocessor has space for two blocks.
template <class T, class D>
void start(CudaQueue& queue, const CrossEntropy& op, const Loss<T, D>& args) {
  const auto launch_with = [&](auto kernel, int64_t bytes) {
    if (bytes > 0) allow_shared(queue, kernel, bytes, "CrossEntropy");
    kernel<<<unsigned(args.rows), kThreads, size_t(bytes), queue.use()>>>(args);
  };
  if constexpr (sizeof(T) == 2)
    if (const int64_t bytes = bytes_to_keep<T>(op.vocab); op.scale != 0 && fits_in_shared(queue, 2 * bytes))
      return launch_with(cross_entropy<T, D, true>, bytes);
  launch_with(cross_entropy<T, D, false>, 0);
}

}  // namespace

void run(const CrossEntropy& op, Stream& stream) {
  const int64_t rows = op.logits.dim(0);
  if (rows == 0) return;
  CudaQueue& queue = cuda_queue(stream);
  with_loss(queue, op, op.vocab, [&](auto args) { start(queue, op, args); });
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
