// Attention forward on Hopper's warpgroup products, for sm_90a. A block of two warpgroups owns 128 queries of
// one head, a warpgroup 64 of them, and processes the keys 128 at a time, from the diagonal down. So every
// row sees a key of the first tile, and without a bounded mask no other tile has hidden keys. The softmax is
// online (FlashAttention-2, arXiv 2307.08691). While it processes the scores of one tile, the tensor cores
// multiply the probabilities of the previous tile by its values (FlashAttention-3, arXiv 2407.08608,
// section 3.2).
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/swizzled_tile.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 2 * kWarpgroup, kQueries = 128, kKeys = 128, kTiles = kKeys / 8;

template <class T, int D>
struct Blocks {
  using Tile = SwizzledTile<T, D, kKeys>;
  static_assert(kQueries == kKeys);
  uint32_t address;

  static constexpr int kBytes = 5 * Tile::kBytes + kThreads * 4;
  __device__ Tile q() const { return {address}; }
  __device__ Tile k(int step) const { return {address + uint32_t(1 + step % 2) * Tile::kBytes}; }
  __device__ Tile v(int step) const { return {address + uint32_t(3 + step % 2) * Tile::kBytes}; }
  __device__ uint32_t slot() const { return address + 5 * Tile::kBytes + threadIdx.x * 4; }
};

// This lane's two rows: the largest score so far, this lane's part of the denominator, and the last tile's
// factor for earlier sums.
struct Rows {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, shrink[2];
};

// Replaces scores by 2^(scale (score - top)).
__device__ __forceinline__ void soften(float (&s)[kTiles][4], Rows& rows, float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.top[half];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(s[n][half * 2], s[n][half * 2 + 1]));
    top = quad_max(top);
    rows.shrink[half] = quick_exp2((rows.top[half] - top) * scale);
    rows.top[half] = top;
    const float shift = top * scale;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = half * 2; i < half * 2 + 2; ++i) sum += s[n][i] = quick_exp2(fmaf(s[n][i], scale, -shift));
    rows.sum[half] = fmaf(rows.sum[half], rows.shrink[half], sum);
  }
}

// Hides keys after the query in the diagonal tile.
__device__ __forceinline__ void hide(float (&s)[kTiles][4], int query) {
  const int key = int(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (key + n * 8 + i % 2 > query + i / 2 * 8) s[n][i] = -INFINITY;
}

// Hides keys before the first visible key of each of the lane's two rows, counted from the tile's first key.
__device__ __forceinline__ void hide_before(float (&s)[kTiles][4], int first, int second) {
  const int key = int(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (key + n * 8 + i % 2 < (i < 2 ? first : second)) s[n][i] = -INFINITY;
}

template <int kColumns>
__device__ __forceinline__ void shrink(float (&o)[kColumns][4], const Rows& rows) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= rows.shrink[i / 2];
}

// Step i is key tile last - i. At the barrier of step i, all scores of step i and all earlier products with
// values are done, so the tiles of keys i + 2 and values i + 1 may arrive in their places.
template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1) forward(Attention<T> a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Blocks<T, D> blocks{shared_address(shared)};
  // Blocks with the most keys start first.
  const int last = int(gridDim.x - 1 - blockIdx.x), head = blockIdx.y, b = blockIdx.z;
  const int mine = warpgroup_index() * 64, lane_row = mine + int(threadIdx.x) % kWarpgroup / 32 * 16;
  const T *keys = a.qkv + a.key(b, a.kv_head(head)), *values = a.qkv + a.value(b, a.kv_head(head));
  const float scale = a.scale * kLog2E;
  const int steps = last - (kBounded ? first_key<true>(a, b, last * kQueries) / kKeys
                                     : 0);  // number of tiles after the diagonal one
  const int row = last * kQueries + lane_row + int(threadIdx.x) % 32 / 4;
  const int from[2] = {first_key<kBounded>(a, b, row), first_key<kBounded>(a, b, row + 8)},
            seen_by_all = first_key<kBounded>(a, b, last * kQueries + kQueries - 1);
  auto fetch_keys = [&](int step) {
    if (step <= steps)
      blocks.k(step).template fetch<kThreads>(keys, a.stride(), (last - step) * kKeys, a.seq, a.dim);
  };
  auto fetch_values = [&](int step) {
    blocks.v(step).template fetch<kThreads>(values, a.stride(), (last - step) * kKeys, a.seq, a.dim);
  };
  auto arrive = [] {
    wait_for_copies<0>();
    publish_shared();
    __syncthreads();
  };
  blocks.q().template fetch<kThreads>(a.qkv + a.query(b, head), a.stride(), last * kQueries, a.seq, a.dim);
  fetch_keys(0);
  commit_copies();
  arrive();
  float o[D / 8][4] = {}, s[kTiles][4];
  uint32_t p[kTiles / 2][4];
  Rows rows;
  begin_products();
  multiply_rows(s, blocks.q(), mine, blocks.k(0));
  commit_products();
  fetch_keys(1);
  fetch_values(0);
  commit_copies();
  wait_for_products<0>();
  settle(s);
  hide(s, lane_row + int(threadIdx.x) % 32 / 4);
  if (kBounded) hide_before(s, from[0] - last * kKeys, from[1] - last * kKeys);
  soften(s, rows, scale);
  pack<T>(p, s);
  for (int step = 0; step < steps; ++step) {
    arrive();
    begin_products();
    multiply_rows(s, blocks.q(), mine, blocks.k(step + 1));
    commit_products();
    add_product(o, p, blocks.v(step));
    commit_products();
    fetch_keys(step + 2);
    fetch_values(step + 1);
    commit_copies();
    wait_for_products<1>();
    settle(s);
    const int k0 = (last - step - 1) * kKeys;
    if (kBounded && k0 < seen_by_all) hide_before(s, from[0] - k0, from[1] - k0);
    soften(s, rows, scale);
    finish_first(rows.sum[0] + rows.sum[1], blocks.slot());
    wait_for_products<0>();
    settle(o);
    settle(p);
    shrink(o, rows);
    pack<T>(p, s);
  }
  arrive();
  begin_products();
  add_product(o, p, blocks.v(steps));
  commit_products();
  wait_for_products<0>();
  settle(o);
  store_forward<T, D>(a, b, head, last * kQueries + lane_row, o, rows.top, rows.sum, a.scale);
}

}  // namespace

template <class T>
void warpgroup_attention_forward(CudaQueue& queue, const Attention<T>& a) {
  with_width(a.dim, [&](auto width) {
    with_bounds(a, [&](auto bounded) {
      constexpr int D = decltype(width)::value, kBytes = Blocks<T, D>::kBytes;
      const auto kernel = forward<T, D, decltype(bounded)::value>;
      allow_shared(queue, kernel, kBytes, "AttentionForward");
      const dim3 grid(unsigned(ceil_div(a.seq, kQueries)), unsigned(a.heads), unsigned(a.batch));
      kernel<<<grid, kThreads, size_t(kBytes), queue.use()>>>(a);
    });
  });
  queue.launched("AttentionForward");
}

template void warpgroup_attention_forward(CudaQueue&, const Attention<Bf16>&);
template void warpgroup_attention_forward(CudaQueue&, const Attention<Fp16>&);

}  // namespace cleave::kernels::gpu
