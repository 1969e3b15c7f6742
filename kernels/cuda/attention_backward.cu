// Attention backward; recomputes the probabilities from lse (FlashAttention-2, arXiv 2307.08691). One kernel
// owns keys and sums over queries, the other owns queries and sums over keys. This takes two products more
// than a single kernel, but every sum has one owner and a fixed order, without atomics.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

namespace cleave::kernels::gpu {
namespace {

constexpr int kThreads = 128, kOwn = 64, kOther = 32, kTiles = kOther / 8;

// Two owned tiles, and two stages of two other tiles.
template <class T, int D>
struct Blocks {
  T* shared;

  // Elements of `tiles` tiles of kOther rows.
  static constexpr int at(int tiles) { return tiles * Tile<T, D>::numel(kOther); }
  static constexpr int kNumel = at(8);
  __device__ Tile<T, D> own(int which) const { return {shared + at(2 * which)}; }
  __device__ Tile<T, D> other(int which, int stage) const {
    return {shared + at(4 + which + 2 * (stage % 2))};
  }
};

// dK and dV of 64 keys, over every query head that reads them and every query tile from the diagonal on.
// Queries are columns: P^T = exp(K Q^T - lse), dV += P^T dY, dS^T = P^T (V dY^T - delta), dK += dS^T Q.
template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads) backward_keys(Attention<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float lse[2][kOther], delta[2][kOther];
  __shared__ int
      end[kBounded ? kOwn : 1];  // query_end of each key; the registers do not suffice for a lane's two
  const Blocks<T, D> blocks{reinterpret_cast<T*>(shared)};
  const int k0 = blockIdx.x * kOwn, kv = blockIdx.y, b = blockIdx.z;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
  if (kBounded && threadIdx.x < kOwn) end[threadIdx.x] = query_end<kBounded>(a, b, k0 + int(threadIdx.x));
  const int last_end = query_end<kBounded>(a, b, k0 + kOwn - 1);
  const int group = a.heads / a.kv_heads, per_head = (last_end - k0 + kOther - 1) / kOther,
            steps = group * per_head;
  auto fetch = [&](int step) {
    const int head = kv * group + step / per_head, q0 = k0 + step % per_head * kOther, stage = step % 2;
    const Tile<T, D> q = blocks.other(0, step), dy = blocks.other(1, step);
    q.template fetch<kOther, kThreads>(a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
    dy.template fetch<kOther, kThreads>(a.dy + a.output(b, head), a.out_stride(), q0, a.seq, a.dim);
    if (threadIdx.x < kOther) {
      const int query = q0 + int(threadIdx.x);
      const bool valid = query < a.seq;
      lse[stage][threadIdx.x] = valid ? a.lse[a.row(b, head) + query] * kLog2E : INFINITY;
      delta[stage][threadIdx.x] = valid ? a.delta[a.row(b, head) + query] : 0.0f;
    }
  };
  blocks.own(0).template fetch<kOwn, kThreads>(a.qkv + a.key(b, kv), a.stride(), k0, a.seq, a.dim);
  blocks.own(1).template fetch<kOwn, kThreads>(a.qkv + a.value(b, kv), a.stride(), k0, a.seq, a.dim);
  fetch(0);
  commit_copies();
  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) fetch(step + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int stage = step % 2, q0 = k0 + step % per_head * kOther;
    const Tile<T, D> q = blocks.other(0, step), dy = blocks.other(1, step);
    float s[kTiles][4], d[kTiles][4];
    multiply_rows(s, blocks.own(0), first, q);
    multiply_rows(d, blocks.own(1), first, dy);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * 8 + lane % 4 * 2 + i % 2, key = k0 + first + lane / 4 + i / 2 * 8;
        const bool hidden = key > q0 + column || (kBounded && q0 + column >= end[key - k0]);
        const float p = hidden ? 0.0f : exp2f(s[n][i] * (a.scale * kLog2E) - lse[stage][column]);
        s[n][i] = p;
        d[n][i] = p * (d[n][i] - delta[stage][column]);
      }
    add_product(dv, s, dy);
    add_product(dk, d, q);
    __syncthreads();
  }
  store_rows<T, D>(a.dqkv + a.key(b, kv), a.stride(), k0 + first, a.seq, a.dim, dk, a.scale, a.scale);
  store_rows<T, D>(a.dqkv + a.value(b, kv), a.stride(), k0 + first, a.seq, a.dim, dv, 1, 1);
}

// dQ of 64 queries of one head, over key tiles up to the diagonal: dS = P (dY V^T - delta), dQ += dS K.
template <class T, int D, bool kBounded>
__global__ void __launch_bounds__(kThreads) backward_queries(Attention<T> a) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Blocks<T, D> blocks{reinterpret_cast<T*>(shared)};
  const int q0 = int(gridDim.x - 1 - blockIdx.x) * kOwn, head = blockIdx.y, b = blockIdx.z;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
  const T *keys = a.qkv + a.key(b, a.kv_head(head)), *values = a.qkv + a.value(b, a.kv_head(head));
  auto fetch = [&](int tile) {
    const Tile<T, D> k = blocks.other(0, tile), v = blocks.other(1, tile);
    k.template fetch<kOther, kThreads>(keys, a.stride(), tile * kOther, a.seq, a.dim);
    v.template fetch<kOther, kThreads>(values, a.stride(), tile * kOther, a.seq, a.dim);
  };
  blocks.own(0).template fetch<kOwn, kThreads>(a.qkv + a.query(b, head), a.stride(), q0, a.seq, a.dim);
  blocks.own(1).template fetch<kOwn, kThreads>(a.dy + a.output(b, head), a.out_stride(), q0, a.seq, a.dim);
  const int begin = kBounded ? first_key<true>(a, b, q0) / kOther : 0;
  fetch(begin);
  commit_copies();
  float lse[2], delta[2];  // this lane's two rows
  int from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = q0 + first + lane / 4 + half * 8;
    lse[half] = query < a.seq ? a.lse[a.row(b, head) + query] * kLog2E : INFINITY;
    delta[half] = query < a.seq ? a.delta[a.row(b, head) + query] : 0.0f;
    from[half] = first_key<kBounded>(a, b, query);
  }
  float dq[D / 8][4] = {};
  const int end = q0 + kOwn < a.seq ? q0 + kOwn : a.seq, tiles = (end + kOther - 1) / kOther;
  for (int tile = begin; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const Tile<T, D> k = blocks.other(0, tile), v = blocks.other(1, tile);
    float s[kTiles][4], d[kTiles][4];
    multiply_rows(s, blocks.own(0), first, k);
    multiply_rows(d, blocks.own(1), first, v);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kOther + n * 8 + lane % 4 * 2 + i % 2,
                  query = q0 + first + lane / 4 + i / 2 * 8;
        const bool hidden = key > query || (kBounded && key < from[i / 2]);
        const float p = hidden ? 0.0f : exp2f(s[n][i] * (a.scale * kLog2E) - lse[i / 2]);
        d[n][i] = p * (d[n][i] - delta[i / 2]);
      }
    add_product(dq, d, k);
    __syncthreads();
  }
  store_rows<T, D>(a.dqkv + a.query(b, head), a.stride(), q0 + first, a.seq, a.dim, dq, a.scale, a.scale);
}

}  // namespace

template <class T>
void attention_backward(CudaQueue& queue, const Attention<T>& a) {
  with_width(a.dim, [&](auto width) {
    with_bounds(a, [&](auto bounded) {
      constexpr int D = decltype(width)::value;
      const auto of_keys = backward_keys<T, D, decltype(bounded)::value>;
      const auto of_queries = backward_queries<T, D, decltype(bounded)::value>;
      const int bytes = Blocks<T, D>::kNumel * int(sizeof(T));
      allow_shared(queue, of_keys, bytes, "AttentionBackward");
      allow_shared(queue, of_queries, bytes, "AttentionBackward");
      const unsigned blocks = unsigned(ceil_div(a.seq, kOwn)), batch = unsigned(a.batch);
      of_keys<<<dim3(blocks, unsigned(a.kv_heads), batch), kThreads, size_t(bytes), queue.use()>>>(a);
      of_queries<<<dim3(blocks, unsigned(a.heads), batch), kThreads, size_t(bytes), queue.use()>>>(a);
    });
  });
  queue.launched("AttentionBackward");
}

template void attention_backward(CudaQueue&, const Attention<Bf16>&);
template void attention_backward(CudaQueue&, const Attention<Fp16>&);

}  // namespace cleave::kernels::gpu
