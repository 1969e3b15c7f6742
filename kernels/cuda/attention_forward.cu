// Attention with online softmax, reading the keys once (FlashAttention-2, arXiv 2307.08691). A block of
// four warps owns 64 queries of one head, a warp 16 of them. Shared memory holds two tiles of keys and
// values: the current one and the next one in flight.
#include "kernels/cuda/attention_rows.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 128, kQueries = 64, kKeys = 64, kTiles = kKeys / 8;

template <class T, int D>
struct Blocks {
  T* shared;

  static constexpr int numel(int tiles) { return tiles * Tile<T, D>::numel(kKeys); }
  __device__ Tile<T, D> q() const { return {shared}; }
  __device__ Tile<T, D> k(int tile) const { return {shared + numel(1 + tile % 2)}; }
  __device__ Tile<T, D> v(int tile) const { return {shared + numel(3 + tile % 2)}; }
};

// This lane's two rows: the largest score so far, and this lane's part of the denominator.
struct Rows {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
};

// Replaces scores by 2^(score - top), and rescales earlier sums to the new top. A row without a visible key
// so far, which only a bounded mask has, keeps a top of minus infinity and a sum of zero.
template <bool kBounded, int D>
__device__ __forceinline__ void soften(float (&s)[kTiles][4], Rows& rows, float (&o)[D / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.top[half];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
    top = quad_max(top);
    const float shift = kBounded && top == -INFINITY ? 0.0f : top, shrink = exp2f(rows.top[half] - shift);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) sum += s[n][i] = exp2f(s[n][i] - shift);
    rows.top[half] = top;
    rows.sum[half] = fmaf(rows.sum[half], shrink, sum);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) o[n][half * 2] *= shrink, o[n][half * 2 + 1] *= shrink;
  }
}

// Scales scores to log2 units and hides keys after the query on the diagonal. `key` is the lane's first key.
__device__ __forceinline__ void scale_and_hide(float (&s)[kTiles][4], float scale, bool diagonal, int query,
                                               int key) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] *= scale;
      if (diagonal && key + n * 8 + i % 2 > query + i / 2 * 8) s[n][i] = -INFINITY;
    }
}

// Hides keys before the first visible key of each of the lane's two rows.
__device__ __forceinline__ void hide_before(float (&s)[kTiles][4], const int (&from)[2], int key) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (key + n * 8 + i % 2 < from[i / 2]) s[n][i] = -INFINITY;
}

template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads) forward(Attention<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Blocks<T, D> blocks{reinterpret_cast<T*>(shared)};
  // Blocks with the most keys start first.
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * kQueries, head = blockIdx.y, b = blockIdx.z;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
  const T *keys = a.qkv + a.key(b, a.kv_head(head)), *values = a.qkv + a.value(b, a.kv_head(head));
  auto fetch = [&](int tile) {
    blocks.k(tile).template fetch<kKeys, kThreads>(keys, a.stride(), tile * kKeys, a.seq, a.dim);
    blocks.v(tile).template fetch<kKeys, kThreads>(values, a.stride(), tile * kKeys, a.seq, a.dim);
  };
  blocks.q().template fetch<kQueries, kThreads>(a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
  const int begin = kBounded ? first_key<true>(a, b, q0) / kKeys : 0,
            seen_by_all = first_key<kBounded>(a, b, q0 + kQueries - 1);
  const int from[2] = {first_key<kBounded>(a, b, q0 + first + lane / 4),
                       first_key<kBounded>(a, b, q0 + first + lane / 4 + 8)};
  fetch(begin);
  commit_copies();
  float o[D / 8][4] = {};
  Rows rows;
  const int tiles = q0 / kKeys + 1;
  for (int tile = begin; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    float s[kTiles][4];
    multiply_rows(s, blocks.q(), first, blocks.k(tile));
    scale_and_hide(s, a.scale * kLog2E, tile + 1 == tiles, q0 + first + lane / 4,
                   tile * kKeys + lane % 4 * 2);
    if (kBounded && tile * kKeys < seen_by_all) hide_before(s, from, tile * kKeys + lane % 4 * 2);
    soften<kBounded, D>(s, rows, o);
    add_product(o, s, blocks.v(tile));
    __syncthreads();  // before the tile after next arrives in the same place
  }
  store_forward<T, D>(a, b, head, q0 + first, o, rows.top, rows.sum, kLn2);
}

}  // namespace

template <class T>
void attention_forward(CudaQueue& queue, const Attention<T>& a) {
  with_width(a.dim, [&](auto width) {
    with_bounds(a, [&](auto bounded) {
      constexpr int D = decltype(width)::value;
      const auto kernel = forward<T, D, decltype(bounded)::value>;
      const int bytes = Blocks<T, D>::numel(5) * int(sizeof(T));
      allow_shared(queue, kernel, bytes, "AttentionForward");
      const dim3 grid(unsigned(ceil_div(a.seq, kQueries)), unsigned(a.heads), unsigned(a.batch));
      kernel<<<grid, kThreads, size_t(bytes), queue.use()>>>(a);
    });
  });
  queue.launched("AttentionForward");
}

template void attention_forward(CudaQueue&, const Attention<Bf16>&);
template void attention_forward(CudaQueue&, const Attention<Fp16>&);

}  // namespace cleave::kernels::gpu
