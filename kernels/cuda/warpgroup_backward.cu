// Attention backward on Hopper's warpgroup products, for sm_90a; recomputes the probabilities from lse
// (FlashAttention-2, arXiv 2307.08691). Like attention_backward.cu, one kernel owns keys and sums over
// queries, the other owns queries and sums over keys, so every sum has one owner and a fixed order, without
// atomics. A block of two warpgroups owns 128 rows, a warpgroup 64 of them, and processes the other rows tile
// by tile.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/swizzled_tile.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 2 * kWarpgroup, kOwn = 128, kStages = 3;
// Other rows per tile. Products of 64 columns are limited by shared memory reads, so 96 if the registers
// allow it.
constexpr int kQueries = 64, kKeys = 96;

// Two owned tiles; three stages of two other tiles, each with the lse and delta of its rows; and a number per
// owned row. Three stages, because while a warpgroup waits for a tile, another one may still multiply the
// previous tile, and the next tile is already requested.
template <class T, int D, int kOther>
struct Blocks {
  using Own = SwizzledTile<T, D, kOwn>;
  using Other = SwizzledTile<T, D, kOther>;
  static constexpr int kTileBytes = 2 * Own::kBytes + 2 * kStages * Other::kBytes,
                       kNumbers = 2 * kStages * kOther,
                       kBytes = kTileBytes + (kNumbers + kOwn) * int(sizeof(float));
  unsigned char* shared;
  uint32_t address;

  __device__ Own own(int which) const { return {address + which * Own::kBytes}; }
  __device__ Other other(int which, int stage) const {
    return {address + 2 * Own::kBytes + uint32_t(which + 2 * stage) * Other::kBytes};
  }
  __device__ float* numbers(int which, int stage) const {
    return reinterpret_cast<float*>(shared + kTileBytes) + (which + 2 * stage) * kOther;
  }
  __device__ int* bounds() const { return reinterpret_cast<int*>(shared + kTileBytes) + kNumbers; }
};

__device__ __forceinline__ int next(int stage) { return stage + 1 < kStages ? stage + 1 : 0; }

// Copies kQueries numbers of rows from `first` on to shared memory, with threads 0 .. kQueries - 1; zeros
// beyond.
__device__ __forceinline__ void fetch_numbers(float* to, const float* from, int first, int rows, int thread) {
  if (thread < 0 || thread >= kQueries) return;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to + thread)),
               "l"(from + first + thread), "r"(first + thread < rows ? 4 : 0)
               : "memory");
}

__device__ __forceinline__ void arrive() {
  wait_for_copies<0>();
  publish_shared();
  __syncthreads();
}

// Zeroes columns before the row, or after it; `diagonal` is the place of the lane's first row among its
// columns.
template <bool before, int kTiles>
__device__ __forceinline__ void hide(float (&s)[kTiles][4], int diagonal) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = n * 8 + i % 2 - i / 2 * 8;
      if (before ? column < diagonal : column > diagonal) s[n][i] = 0;
    }
}

// Zeroes columns before the bound of each of the lane's two rows, or from the bound on; bounds count from the
// tile's first column.
template <bool before, int kTiles>
__device__ __forceinline__ void hide_by_rows(float (&s)[kTiles][4], int first, int second) {
  const int column = int(threadIdx.x % 4 * 2);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool ahead = column + n * 8 + i % 2 < (i < 2 ? first : second);
      if (ahead == before) s[n][i] = 0;
    }
}

// dK and dV of 128 keys, over every query head that reads them and every query tile from the diagonal on.
// Queries are columns: P^T = exp(K Q^T - lse), dV += P^T dY, dS^T = P^T (V dY^T - delta), dK += dS^T Q.
// Operands of a query beyond the last one are zero: its P is 1, its dY and dS are zero.
template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1) backward_keys(Attention<T> a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Blocks<T, D, kQueries> blocks{shared, shared_address(shared)};
  const int k0 = blockIdx.x * kOwn, kv = blockIdx.y, b = blockIdx.z, lane = threadIdx.x % 32;
  // First owned key of this warpgroup, of this warp, and of this lane.
  const int mine = warpgroup_index() * 64, first = int(threadIdx.x) / 32 * 16, row = first + lane / 4;
  // Bound of an owned key. In shared memory, because the accumulators leave no registers.
  const auto query_end_of = [&](int key) { return kBounded ? blocks.bounds()[key] : a.seq; };
  if constexpr (kBounded) {
    if (threadIdx.x < kOwn) blocks.bounds()[threadIdx.x] = query_end<true>(a, b, k0 + int(threadIdx.x));
    __syncthreads();
  }
  int head = kv * (a.heads / a.kv_heads), q0 = k0;  // of the next tile to load
  const int end = head + a.heads / a.kv_heads;
  auto fetch = [&](int stage) {
    blocks.other(0, stage).template fetch<kThreads>(a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
    blocks.other(1, stage).template fetch<kThreads>(a.dy + a.output(b, head), a.out_stride(), q0, a.seq,
                                                    a.dim);
    fetch_numbers(blocks.numbers(0, stage), a.lse + a.row(b, head), q0, a.seq, int(threadIdx.x));
    fetch_numbers(blocks.numbers(1, stage), a.delta + a.row(b, head), q0, a.seq, int(threadIdx.x) - kQueries);
    q0 += kQueries;
    if (q0 >= query_end_of(kOwn - 1)) q0 = k0, ++head;
  };
  blocks.own(0).template fetch<kThreads>(a.qkv + a.key(b, kv), a.stride(), k0, a.seq, a.dim);
  blocks.own(1).template fetch<kThreads>(a.qkv + a.value(b, kv), a.stride(), k0, a.seq, a.dim);
  fetch(0);
  commit_copies();
  float dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[kQueries / 8][4], d[kQueries / 8][4];
  uint32_t p[kQueries / 16][4], ds[kQueries / 16][4];
  settle(dk);  // otherwise the compiler sets the known zeros inside the loop, next to running products
  settle(dv);
  for (int stage = 0, now = k0; now >= 0; stage = next(stage)) {  // `now` is the tile's first query
    arrive();
    const auto q = blocks.other(0, stage), dy = blocks.other(1, stage);
    begin_products();
    multiply_rows(s, blocks.own(0), mine, q);
    commit_products();
    multiply_rows(d, blocks.own(1), mine, dy);
    commit_products();
    const int later = head < end ? q0 : -1;
    if (later >= 0) fetch(next(stage));
    commit_copies();
    wait_for_products<1>();
    settle(s);
    settle(p);
    settle(ds);
    const float *lse = blocks.numbers(0, stage) + lane % 4 * 2,
                *delta = blocks.numbers(1, stage) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[n][i] = quick_exp2(fmaf(s[n][i], a.log2_scale, -lse[n * 8 + i % 2] * kLog2E));
    if (now < k0 + kOwn) hide<true>(s, k0 + row - now - lane % 4 * 2);
    if (kBounded && now + kQueries > query_end_of(0))
      hide_by_rows<false>(s, query_end_of(row) - now, query_end_of(row + 8) - now);
    pack<T>(p, s);
    begin_products();
    add_product(dv, p, dy);
    commit_products();
    wait_for_products<1>();
    settle(d);
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) d[n][i] = s[n][i] * (d[n][i] - delta[n * 8 + i % 2]);
    pack<T>(ds, d);
    begin_products();
    add_product(dk, ds, q);
    commit_products();
    now = later;
  }
  wait_for_products<0>();
  settle(dk);
  settle(dv);
  store_rows<T, D>(a.dqkv + a.key(b, kv), a.stride(), k0 + first, a.seq, a.dim, dk, a.scale, a.scale);
  store_rows<T, D>(a.dqkv + a.value(b, kv), a.stride(), k0 + first, a.seq, a.dim, dv, 1, 1);
}

// dQ of 128 queries of one head, over key tiles up to the diagonal: dS = P (dY V^T - delta), dQ += dS K.
template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1) backward_queries(Attention<T> a) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Blocks<T, D, kKeys> blocks{shared, shared_address(shared)};
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * kOwn, head = blockIdx.y, b = blockIdx.z,
            lane = threadIdx.x % 32;
  const int mine = warpgroup_index() * 64, first = q0 + mine + int(threadIdx.x) % kWarpgroup / 32 * 16;
  const T *keys = a.qkv + a.key(b, a.kv_head(head)), *values = a.qkv + a.value(b, a.kv_head(head));
  auto fetch = [&](int stage, int k0) {
    blocks.other(0, stage).template fetch<kThreads>(keys, a.stride(), k0, a.seq, a.dim);
    blocks.other(1, stage).template fetch<kThreads>(values, a.stride(), k0, a.seq, a.dim);
  };
  blocks.own(0).template fetch<kThreads>(a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
  blocks.own(1).template fetch<kThreads>(a.dy + a.output(b, head), a.out_stride(), q0, a.seq, a.dim);
  const int begin = kBounded ? first_key<true>(a, b, q0) / kKeys * kKeys : 0,
            seen_by_all = first_key<kBounded>(a, b, q0 + kOwn - 1);
  fetch(0, begin);
  commit_copies();
  float lse[2], delta[2];  // this lane's two rows
  int from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first + lane / 4 + half * 8;
    lse[half] = query < a.seq ? a.lse[a.row(b, head) + query] * kLog2E : 0;
    delta[half] = query < a.seq ? a.delta[a.row(b, head) + query] : 0;
    from[half] = first_key<kBounded>(a, b, query);
  }
  float dq[D / 8][4] = {}, s[kKeys / 8][4], d[kKeys / 8][4];
  uint32_t ds[kKeys / 16][4];
  settle(dq);
  const int end = q0 + kOwn < a.seq ? q0 + kOwn : a.seq;
  for (int k0 = begin, stage = 0; k0 < end; k0 += kKeys, stage = next(stage)) {
    arrive();
    const auto k = blocks.other(0, stage), v = blocks.other(1, stage);
    begin_products();
    multiply_rows(s, blocks.own(0), mine, k);
    commit_products();
    multiply_rows(d, blocks.own(1), mine, v);
    commit_products();
    if (k0 + kKeys < end) fetch(next(stage), k0 + kKeys);
    commit_copies();
    wait_for_products<1>();
    settle(s);
    settle(ds);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = quick_exp2(fmaf(s[n][i], a.log2_scale, -lse[i / 2]));
    if (k0 + kKeys > q0) hide<false>(s, first + lane / 4 - k0 - lane % 4 * 2);
    if (kBounded && k0 < seen_by_all) hide_by_rows<true>(s, from[0] - k0, from[1] - k0);
    wait_for_products<0>();
    settle(d);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) d[n][i] = s[n][i] * (d[n][i] - delta[i / 2]);
    pack<T>(ds, d);
    begin_products();
    add_product(dq, ds, k);
    commit_products();
  }
  wait_for_products<0>();
  settle(dq);
  store_rows<T, D>(a.dqkv + a.query(b, head), a.stride(), first, a.seq, a.dim, dq, a.scale, a.scale);
}

}  // namespace

template <class T>
void warpgroup_attention_backward(CudaQueue& queue, const Attention<T>& a) {
  with_width(a.dim, [&](auto width) {
    with_bounds(a, [&](auto bounded) {
      constexpr int D = decltype(width)::value;
      constexpr int for_keys = Blocks<T, D, kQueries>::kBytes, for_queries = Blocks<T, D, kKeys>::kBytes;
      const auto of_keys = backward_keys<T, D, decltype(bounded)::value>;
      const auto of_queries = backward_queries<T, D, decltype(bounded)::value>;
      allow_shared(queue, of_keys, for_keys, "AttentionBackward");
      allow_shared(queue, of_queries, for_queries, "AttentionBackward");
      const unsigned blocks = unsigned(ceil_div(a.seq, kOwn)), batch = unsigned(a.batch);
      of_keys<<<dim3(blocks, unsigned(a.kv_heads), batch), kThreads, size_t(for_keys), queue.use()>>>(a);
      of_queries<<<dim3(blocks, unsigned(a.heads), batch), kThreads, size_t(for_queries), queue.use()>>>(a);
    });
  });
  queue.launched("AttentionBackward");
}

template void warpgroup_attention_backward(CudaQueue&, const Attention<Bf16>&);
template void warpgroup_attention_backward(CudaQueue&, const Attention<Fp16>&);

}  // namespace cleave::kernels::gpu
