// Attention for the cases that the tensor-core kernels do not support: fp32, dropout, a soft cap, no causal
// mask, other head dims. The same algorithms with plain multiply-adds. A warp owns eight rows, or four of
// wide heads; a lane is one of 32 score columns, then every 32nd element of a head.
#include "kernels/cuda/attention.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kColumns = 32;
// Parts of 32 columns of a head: most heads have up to four. Wider heads leave registers for half the rows.
constexpr int kNarrow = 4, kWide = int(kGpuHeadDim) / 32;
template <int kParts>
inline constexpr int kOwnRows = kParts > kNarrow ? 4 : 8;  // per warp
template <int kParts>
inline constexpr int kRows = kWarps* kOwnRows<kParts>;  // per block

// Loads kCount rows of a matrix into shared memory as fp32, zeros beyond. The pitch is odd if a lane is a
// row.
template <int kCount, class T>
__device__ __forceinline__ void fetch(float* to, const T* from, int64_t stride, int first, int rows,
                                      int dim) {
  for (int i = threadIdx.x; i < kCount * dim; i += kThreads) {
    const int row = i / dim, column = i % dim;
    to[row * (dim + 1) + column] =
        first + row < rows ? to_float(from[(first + row) * stride + column]) : 0.0f;
  }
}

// s[r] = dot product of own row r of this warp and row `lane` of other.
template <int kOwn>
__device__ __forceinline__ void dots(float (&s)[kOwn], const float* own, const float* other, int dim) {
  const float *mine = own + threadIdx.x / 32 * kOwn * (dim + 1),
              *column = other + threadIdx.x % 32 * (dim + 1);
#pragma unroll
  for (int r = 0; r < kOwn; ++r) s[r] = 0;
  for (int d = 0; d < dim; ++d)
#pragma unroll
    for (int r = 0; r < kOwn; ++r) s[r] = fmaf(mine[r * (dim + 1) + d], column[d], s[r]);
}

struct AsTheyAre {};

// sums[r][part] += weights[r][column] rows[column][32 part + lane] over the columns. Weights go through
// `shared`, where each is multiplied by factor(r).
template <int kOwn, int kParts, class Factor = AsTheyAre>
__device__ __forceinline__ void add_weighted(float (&sums)[kOwn][kParts], const float (&weights)[kOwn],
                                             float* shared, const float* rows, int dim, Factor factor = {}) {
  const int lane = threadIdx.x % 32;
  float* mine = shared + threadIdx.x / 32 * kOwn * kColumns;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kOwn; ++r) mine[r * kColumns + lane] = weights[r];
  if constexpr (!std::is_same_v<Factor, AsTheyAre>)
#pragma unroll 1  // random numbers of one row in registers
    for (int r = 0; r < kOwn; ++r) mine[r * kColumns + lane] *= factor(r);
  __syncwarp();
  for (int c = 0; c < kColumns; ++c) {
    float v[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      v[part] = kParts > kNarrow  // sums of columns beyond the head are unused
                    ? rows[c * (dim + 1) + min(part * 32 + lane, dim - 1)]
                    : part * 32 + lane < dim ? rows[c * (dim + 1) + part * 32 + lane] : 0.0f;
#pragma unroll
    for (int r = 0; r < kOwn; ++r)
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        sums[r][part] = fmaf(mine[r * kColumns + c], v[part], sums[r][part]);
  }
}

template <class T, int kOwn, int kParts>
__device__ __forceinline__ void store_own(T* to, int64_t stride, int first, int rows, int dim,
                                          const float (&sums)[kOwn][kParts], float factor) {
#pragma unroll
  for (int r = 0; r < kOwn; ++r)
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = first + int(threadIdx.x) / 32 * kOwn + r, column = part * 32 + int(threadIdx.x) % 32;
      if (row < rows && column < dim) to[row * stride + column] = rounded<T>(sums[r][part] * factor);
    }
}

// Two blocks of own rows, two blocks of 32 columns' rows, then weights.
template <int kParts>
struct Shared {
  float* base;
  int dim;
  __device__ float* own(int i) const { return base + i * kRows<kParts> * (dim + 1); }
  __device__ float* others(int i) const { return own(2) + i * kColumns * (dim + 1); }
  __device__ float* weights() const { return others(2); }
  static int64_t bytes(int dim) {
    return (2 * (kRows<kParts> + kColumns) * (dim + 1) + kRows<kParts> * kColumns) * int64_t(sizeof(float));
  }
};

// Kernels with kMore, compiled with kBounded only, support dropout, a cap, and queries that see every key.
template <bool kMore, class T>
__device__ __forceinline__ bool sees_all(const Attention<T>& a) {
  return kMore && !a.causal;
}

// Converts the product of a query and a key to a score in log2 units.
template <bool kMore, class T>
__device__ __forceinline__ float score_of(const Attention<T>& a, float dot) {
  const float score = dot * (a.scale * kLog2E);
  return kMore && a.log2_cap > 0 ? a.log2_cap * tanhf(score / a.log2_cap) : score;
}

// Derivative of the capped score by the uncapped score, from the capped score.
template <bool kMore, class T>
__device__ __forceinline__ float cap_slope(const Attention<T>& a, float score) {
  if (!kMore || a.log2_cap == 0) return 1;
  const float t = score / a.log2_cap;
  return fmaf(-t, t, 1.0f);
}

template <bool kMore, class T>
__device__ __forceinline__ float weight_factor(const Attention<T>& a, int b, int head, int query, int key) {
  return kMore && a.dropout.p > 0 ? dropout_factor(a, b, head, query, key) : 1.0f;
}

template <class T, bool kBounded, bool kMore, int kParts>
__global__ void __launch_bounds__(kThreads, kMore ? 2 : 1) forward(Attention<T> a) {
  extern __shared__ __align__(16) float base[];
  constexpr int kOwn = kOwnRows<kParts>;
  const Shared<kParts> shared{base, a.dim};
  float *q = shared.own(0), *k = shared.others(0), *v = shared.others(1);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * kRows<kParts>, head = blockIdx.y, b = blockIdx.z,
            kv = a.kv_head(head);
  const int lane = threadIdx.x % 32, first = q0 + int(threadIdx.x) / 32 * kOwn;
  fetch<kRows<kParts>>(q, a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
  float o[kOwn][kParts] = {}, top[kOwn], sum[kOwn];
  int from[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r)
    top[r] = -INFINITY, sum[r] = 0, from[r] = first_key<kBounded>(a, b, first + r);
  const int begin = kBounded ? first_key<true>(a, b, q0) / kColumns * kColumns : 0;
  const int last = sees_all<kMore>(a) ? a.seq - 1 : q0;
  for (int k0 = begin; k0 <= last; k0 += kColumns) {
    __syncthreads();
    fetch<kColumns>(k, a.qkv + a.key(b, kv), a.stride(), k0, a.seq, a.dim);
    fetch<kColumns>(v, a.qkv + a.value(b, kv), a.stride(), k0, a.seq, a.dim);
    __syncthreads();
    float s[kOwn];
    dots(s, q, k, a.dim);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const bool visible = sees_all<kMore>(a) ? k0 + lane < a.seq
                                              : k0 + lane <= first + r && (!kBounded || k0 + lane >= from[r]);
      const float score = visible ? score_of<kMore>(a, s[r]) : -INFINITY;
      const float highest = fmaxf(top[r], warp_max(score));
      // A row without a visible key so far keeps a top of minus infinity and a sum of zero.
      const float shift = kBounded && highest == -INFINITY ? 0.0f : highest, shrink = exp2f(top[r] - shift);
      s[r] = exp2f(score - shift);
      sum[r] = fmaf(sum[r], shrink, warp_sum(s[r]));
      top[r] = highest;
#pragma unroll
      for (int part = 0; part < kParts; ++part) o[r][part] *= shrink;
    }
    if constexpr (kMore)
      add_weighted(o, s, shared.weights(), v, a.dim,
                   [&](int r) { return weight_factor<kMore>(a, b, head, first + r, k0 + lane); });
    else
      add_weighted(o, s, shared.weights(), v, a.dim);
  }
#pragma unroll
  for (int r = 0; r < kOwn; ++r) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) o[r][part] /= sum[r];
    if (lane == 0 && first + r < a.seq)
      a.lse_out[a.row(b, head) + first + r] = fmaf(top[r], kLn2, logf(sum[r]));
  }
  store_own(a.out + a.output(b, head), a.out_stride(), q0, a.seq, a.dim, o, 1);
}

// Own rows are keys, columns are queries.
template <class T, bool kBounded, bool kMore, int kParts>
__global__ void __launch_bounds__(kThreads, 2) backward_keys(Attention<T> a) {
  extern __shared__ __align__(16) float base[];
  constexpr int kOwn = kOwnRows<kParts>;
  const Shared<kParts> shared{base, a.dim};
  float *k = shared.own(0), *v = shared.own(1), *q = shared.others(0), *dy = shared.others(1);
  const int k0 = blockIdx.x * kRows<kParts>, kv = blockIdx.y, b = blockIdx.z, group = a.heads / a.kv_heads;
  const int lane = threadIdx.x % 32, first = k0 + int(threadIdx.x) / 32 * kOwn;
  fetch<kRows<kParts>>(k, a.qkv + a.key(b, kv), a.stride(), k0, a.seq, a.dim);
  fetch<kRows<kParts>>(v, a.qkv + a.value(b, kv), a.stride(), k0, a.seq, a.dim);
  float dk[kOwn][kParts] = {}, dv[kOwn][kParts] = {};
  const int last_end = query_end<kBounded>(a, b, k0 + kRows<kParts> - 1);
  int end[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) end[r] = query_end<kBounded>(a, b, first + r);
  for (int head = kv * group; head < (kv + 1) * group; ++head)
    for (int q0 = sees_all<kMore>(a) ? 0 : k0; q0 < last_end; q0 += kColumns) {
      __syncthreads();
      fetch<kColumns>(q, a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
      fetch<kColumns>(dy, a.dy + a.output(b, head), a.out_stride(), q0, a.seq, a.dim);
      __syncthreads();
      const int query = q0 + lane;
      const float lse = query < a.seq ? a.lse[a.row(b, head) + query] * kLog2E : INFINITY;
      const float delta = query < a.seq ? a.delta[a.row(b, head) + query] : 0.0f;
      float s[kOwn], d[kOwn];
      dots(s, k, q, a.dim);
      dots(d, v, dy, a.dim);
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
        const bool visible = sees_all<kMore>(a) || (first + r <= query && (!kBounded || query < end[r]));
        const float score = score_of<kMore>(a, s[r]);
        s[r] = visible ? exp2f(score - lse) : 0.0f;
        const float factor = weight_factor<kMore>(a, b, head, query, first + r);
        d[r] = s[r] * (d[r] * factor - delta) * cap_slope<kMore>(a, score);
        s[r] *= factor;
      }
      add_weighted(dv, s, shared.weights(), dy, a.dim);
      add_weighted(dk, d, shared.weights(), q, a.dim);
    }
  store_own(a.dqkv + a.key(b, kv), a.stride(), k0, a.seq, a.dim, dk, a.scale);
  store_own(a.dqkv + a.value(b, kv), a.stride(), k0, a.seq, a.dim, dv, 1);
}

// Own rows are queries, columns are keys.
template <class T, bool kBounded, bool kMore, int kParts>
__global__ void __launch_bounds__(kThreads, kMore ? 2 : 1) backward_queries(Attention<T> a) {
  extern __shared__ __align__(16) float base[];
  constexpr int kOwn = kOwnRows<kParts>;
  const Shared<kParts> shared{base, a.dim};
  float *q = shared.own(0), *dy = shared.own(1), *k = shared.others(0), *v = shared.others(1);
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * kRows<kParts>, head = blockIdx.y, b = blockIdx.z,
            kv = a.kv_head(head);
  const int lane = threadIdx.x % 32, first = q0 + int(threadIdx.x) / 32 * kOwn;
  fetch<kRows<kParts>>(q, a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
  fetch<kRows<kParts>>(dy, a.dy + a.output(b, head), a.out_stride(), q0, a.seq, a.dim);
  float dq[kOwn][kParts] = {};
  int from[kOwn];
#pragma unroll
  for (int r = 0; r < kOwn; ++r) from[r] = first_key<kBounded>(a, b, first + r);
  const int begin = kBounded ? first_key<true>(a, b, q0) / kColumns * kColumns : 0;
  const int last = sees_all<kMore>(a) ? a.seq - 1 : q0;
  for (int k0 = begin; k0 <= last; k0 += kColumns) {
    __syncthreads();
    fetch<kColumns>(k, a.qkv + a.key(b, kv), a.stride(), k0, a.seq, a.dim);
    fetch<kColumns>(v, a.qkv + a.value(b, kv), a.stride(), k0, a.seq, a.dim);
    __syncthreads();
    float s[kOwn], d[kOwn];
    dots(s, q, k, a.dim);
    dots(d, dy, v, a.dim);
#pragma unroll
    for (int r = 0; r < kOwn; ++r) {
      const int query = first + r;
      const bool visible =
          query < a.seq && (sees_all<kMore>(a) ? k0 + lane < a.seq
                                               : k0 + lane <= query && (!kBounded || k0 + lane >= from[r]));
      const float score = score_of<kMore>(a, s[r]);
      const float p = visible ? exp2f(score - a.lse[a.row(b, head) + query] * kLog2E) : 0.0f;
      const float factor = weight_factor<kMore>(a, b, head, query, k0 + lane);
      const float through = p * cap_slope<kMore>(a, score);
      d[r] = visible ? through * (d[r] * factor - a.delta[a.row(b, head) + query]) : 0.0f;
    }
    add_weighted(dq, d, shared.weights(), k, a.dim);
  }
  store_own(a.dqkv + a.query(b, head), a.stride(), q0, a.seq, a.dim, dq, a.scale);
}

template <int kParts, class T, class Kernel>
void start(CudaQueue& queue, Kernel kernel, const Attention<T>& a, int heads, const char* op) {
  const int64_t bytes = Shared<kParts>::bytes(a.dim);
  allow_shared(queue, kernel, bytes, op);
  const dim3 grid(unsigned(ceil_div(a.seq, kRows<kParts>)), unsigned(heads), unsigned(a.batch));
  kernel<<<grid, kThreads, size_t(bytes), queue.use()>>>(a);
  queue.launched(op);
}

}  // namespace

// Calls body(kBounded, kMore, kParts). Wide heads use the kernel with all features.
template <class T, class Body>
void with_kernel(const Attention<T>& a, Body body) {
  if (a.dim > 32 * kNarrow) return body(std::true_type{}, std::true_type{}, Count<kWide>{});
  if (a.dropout.p > 0 || !a.causal || a.log2_cap > 0)
    return body(std::true_type{}, std::true_type{}, Count<kNarrow>{});
  with_bounds(a, [&](auto bounded) { body(bounded, std::false_type{}, Count<kNarrow>{}); });
}

template <class T>
void plain_attention_forward(CudaQueue& queue, const Attention<T>& a) {
  with_kernel(a, [&](auto bounded, auto more, auto parts) {
    constexpr auto kernel =
        forward<T, decltype(bounded)::value, decltype(more)::value, decltype(parts)::value>;
    start<decltype(parts)::value>(queue, kernel, a, a.heads, "AttentionForward");
  });
}

template <class T>
void plain_attention_backward(CudaQueue& queue, const Attention<T>& a) {
  with_kernel(a, [&](auto bounded, auto more, auto parts) {
    constexpr bool kBounded = decltype(bounded)::value, kMore = decltype(more)::value;
    constexpr int kParts = decltype(parts)::value;
    start<kParts>(queue, backward_keys<T, kBounded, kMore, kParts>, a, a.kv_heads, "AttentionBackward");
    start<kParts>(queue, backward_queries<T, kBounded, kMore, kParts>, a, a.heads, "AttentionBackward");
  });
}

template void plain_attention_forward(CudaQueue&, const Attention<float>&);
template void plain_attention_forward(CudaQueue&, const Attention<Bf16>&);
template void plain_attention_forward(CudaQueue&, const Attention<Fp16>&);
template void plain_attention_backward(CudaQueue&, const Attention<float>&);
template void plain_attention_backward(CudaQueue&, const Attention<Bf16>&);
template void plain_attention_backward(CudaQueue&, const Attention<Fp16>&);

}  // namespace cleave::kernels::gpu
