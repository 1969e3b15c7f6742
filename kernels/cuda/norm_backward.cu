// Backward of the norms. A row has as many warps as hold it in registers; narrow rows are processed side by
// side.
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/norm.h"

namespace cleave::kernels::gpu {
namespace {

template <class T>
struct NormBackward {
  T* dx;
  const T *dy, *x, *weight, *dresidual;
  const float *mean, *rstd;
  float* partial;  // [blocks, 2, padded]: dweight, dbias; [blocks, padded] without a bias
  int64_t rows, block_rows;
  int width, padded, warps;  // warps per row: 1, 2 or 4
  bool packed;
  float offset;  // of the weight in RMSNorm
};

// Number of partial sums per column.
template <bool kCentered>
inline constexpr int kSums = kCentered ? 2 : 1;

template <bool kCentered, class T>
__device__ __forceinline__ float gain(const NormBackward<T>& a, float weight) {
  return kCentered ? weight : weight + a.offset;
}

// 16 stored bytes of a row, so a row loaded early takes few registers.
template <class T>
struct Words {
  static constexpr int kWide = 16 / int(sizeof(T));
  uint4 bits;

  // Loads the bytes; zeros beyond the row.
  __device__ __forceinline__ void fetch(const T* row, int column, int width) {
    bits = make_uint4(0, 0, 0, 0);
    if (column < width) bits = *reinterpret_cast<const uint4*>(row + column);
  }
  // Prevents the compiler from keeping values derived earlier in registers.
  __device__ __forceinline__ void forget() {
    asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
  }
  __device__ __forceinline__ void floats(float (&v)[kWide]) const {
    alignas(16) T values[kWide];
    *reinterpret_cast<uint4*>(values) = bits;
#pragma unroll
    for (int j = 0; j < kWide; ++j) v[j] = to_float(values[j]);
  }
};

constexpr int kWarps = 4;  // per block; rows with fewer warps are side by side

// Sums two numbers over the lanes of a row's warps; all lanes get the result.
__device__ __forceinline__ float2 row_sums(float2 v, int warps, float2* shared) {
  v = {warp_sum(v.x), warp_sum(v.y)};
  if (warps == 1) return v;
  const int warp = int(threadIdx.x) / 32, first = warp / warps * warps;
  __syncthreads();  // previous reads of shared are done
  if (threadIdx.x % 32 == 0) shared[warp] = v;
  __syncthreads();
  v = shared[first];
  for (int w = 1; w < warps; ++w) v.x += shared[first + w].x, v.y += shared[first + w].y;
  return v;
}

// Blocks per multiprocessor, limited by registers.
template <bool kCentered, int kPacks>
inline constexpr int kResident = kPacks == 1                                 ? 4
                                 : kPacks == 4 || (kCentered && kPacks == 3) ? 2
                                                                             : 3;

// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy weight; without mean(g) if not centered. Every lane
// keeps the sums of its columns over the rows of its warps, and loads the next row while it processes one. A
// block has whole rounds of rows, so all its warps reach every barrier.
template <class T, bool kCentered, int kPacks>
__global__ void __launch_bounds__(32 * kWarps, kResident<kCentered, kPacks>)
    norm_backward(NormBackward<T> a) {
  constexpr int kWide = Words<T>::kWide;
  __shared__ float2 shared[kWarps];
  extern __shared__ __align__(16) float sums[];
  const int lanes = 32 * a.warps, lane = int(threadIdx.x) % lanes, side = 32 * kWarps / lanes;
  const auto column = [&](int p) { return (p * lanes + lane) * kWide; };
  Words<T> weight[kPacks], x[kPacks], dy[kPacks];
  float dw[kPacks][kWide] = {}, db[kCentered ? kPacks : 1][kWide] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) weight[p].fetch(a.weight, column(p), a.width);
  const int64_t begin = blockIdx.x * a.block_rows;
  const int64_t end = begin + a.block_rows < a.rows ? begin + a.block_rows : a.rows;
  int64_t row = begin + int(threadIdx.x) / lanes;
  float mean = 0, rstd = 0;
  auto fetch = [&](int64_t of) {
    const int width = of < end ? a.width : 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      x[p].fetch(a.x + of * a.width, column(p), width);
      dy[p].fetch(a.dy + of * a.width, column(p), width);
    }
    mean = kCentered && of < end ? a.mean[of] : 0.0f;
    rstd = of < end ? a.rstd[of] : 0.0f;
  };
  fetch(row);
  for (int64_t round = begin; round < end; round += side, row += side) {
    Words<T> now_x[kPacks], now_dy[kPacks], residual[kPacks];
    const float now_mean = mean, now_rstd = rstd;
    const int width = row < end ? a.width : 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      now_x[p] = x[p], now_dy[p] = dy[p];
      if (a.dresidual) residual[p].fetch(a.dresidual + row * a.width, column(p), width);
    }
    fetch(row + side);
    float2 sum = {0, 0};  // of g and of g xhat
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float d[kWide], v[kWide], w[kWide];
      now_dy[p].floats(d), now_x[p].floats(v), weight[p].floats(w);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const float xhat = (v[j] - now_mean) * now_rstd, g = d[j] * gain<kCentered>(a, w[j]);
        sum.x += g;
        sum.y = fmaf(g, xhat, sum.y);
        dw[p][j] = fmaf(d[j], xhat, dw[p][j]);
        if constexpr (kCentered) db[p][j] += d[j];
      }
    }
    sum = row_sums(sum, a.warps, shared);
    const float mean_g = kCentered ? sum.x / float(a.width) : 0.0f, mean_gx = sum.y / float(a.width);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      now_dy[p].forget(), now_x[p].forget(), weight[p].forget();
      float d[kWide], v[kWide], w[kWide], r[kWide] = {};
      now_dy[p].floats(d), now_x[p].floats(v), weight[p].floats(w);
      if (a.dresidual) residual[p].floats(r);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const float xhat = (v[j] - now_mean) * now_rstd;
        v[j] = fmaf(-xhat, mean_gx, d[j] * gain<kCentered>(a, w[j]) - mean_g) * now_rstd + r[j];
      }
      T* out = a.dx + row * a.width + column(p);
      if (column(p) < width) store(out, v);
    }
  }
  // Adds the rows of each side in order.
  float* out = a.partial + int64_t(blockIdx.x) * kSums<kCentered> * a.padded;
  const int mine = int(threadIdx.x) / lanes;
  for (int turn = 0; turn < side; ++turn) {
    if (turn == mine) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (column(p) >= a.padded) continue;
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          const int at = column(p) + j;
          const float w = turn > 0 ? sums[at] + dw[p][j] : dw[p][j];
          if (turn + 1 < side)
            sums[at] = w;
          else
            out[at] = w;
          if constexpr (kCentered) {
            const float b = turn > 0 ? sums[a.padded + at] + db[p][j] : db[p][j];
            if (turn + 1 < side)
              sums[a.padded + at] = b;
            else
              out[a.padded + at] = b;
          }
        }
      }
    }
    __syncthreads();
  }
}

// The same for rows of any width and alignment. Every thread keeps the sums of its columns in shared memory,
// or in global memory if they are too wide (not kKept), so no barrier is needed.
template <bool kCentered, class T>
__device__ __forceinline__ void wide_row(const NormBackward<T>& a, int64_t row, float* sums, float* shared) {
  const int64_t at = row * a.width;
  const float mean = kCentered ? a.mean[row] : 0.0f, rstd = a.rstd[row];
  float sum_g = 0, sum_gx = 0;
  walk(a.width, a.packed, [&](int i, auto n) {
    float d[n.value], v[n.value], w[n.value], dw[n.value], db[n.value] = {};
    load(d, a.dy + at + i);
    load(v, a.x + at + i);
    load(w, a.weight + i);
    load(dw, sums + i);
    if constexpr (kCentered) load(db, sums + a.padded + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) {
      const float xhat = (v[j] - mean) * rstd, g = d[j] * gain<kCentered>(a, w[j]);
      sum_g += g;
      sum_gx = fmaf(g, xhat, sum_gx);
      dw[j] = fmaf(d[j], xhat, dw[j]);
      db[j] += d[j];
    }
    store(sums + i, dw);
    if constexpr (kCentered) store(sums + a.padded + i, db);
  });
  const float mean_g = kCentered ? block_sum(sum_g, shared) / float(a.width) : 0.0f;
  const float mean_gx = block_sum(sum_gx, shared) / float(a.width);
  walk(a.width, a.packed, [&](int i, auto n) {
    float d[n.value], v[n.value], w[n.value], r[n.value] = {};
    load(d, a.dy + at + i);
    load(v, a.x + at + i);
    load(w, a.weight + i);
    if (a.dresidual) load(r, a.dresidual + at + i);
#pragma unroll
    for (int j = 0; j < n.value; ++j) {
      const float xhat = (v[j] - mean) * rstd;
      v[j] = fmaf(-xhat, mean_gx, d[j] * gain<kCentered>(a, w[j]) - mean_g) * rstd + r[j];
    }
    store(a.dx + at + i, v);
  });
}

template <class T, bool kCentered, bool kKept>
__global__ void __launch_bounds__(32 * kNormWarps) wide_backward(NormBackward<T> a) {
  extern __shared__ __align__(16) float kept[];
  __shared__ float shared[kNormWarps];
  float* out = a.partial + int64_t(blockIdx.x) * kSums<kCentered> * a.padded;
  float* sums = kKept ? kept : out;
  auto each_own = [&](auto body) {
    for (int i = int(threadIdx.x) * kPack; i < a.width; i += int(blockDim.x) * kPack)
#pragma unroll
      for (int k = 0; k < kSums<kCentered>; ++k)
#pragma unroll
        for (int j = i; j < i + kPack; ++j) body(k * a.padded + j);
  };
  each_own([&](int j) { sums[j] = 0; });
  const int64_t begin = blockIdx.x * a.block_rows;
  const int64_t end = begin + a.block_rows < a.rows ? begin + a.block_rows : a.rows;
  for (int64_t row = begin; row < end; ++row) wide_row<kCentered>(a, row, sums, shared);
  if constexpr (kKept) each_own([&](int j) { out[j] = sums[j]; });
}

// Maximum packs per lane of a row in the registers of one block.
template <bool kCentered>
inline constexpr int kMostPacks = kCentered ? 3 : 4;

template <class T, bool kCentered>
auto kernel_of(int packs) {
  if constexpr (!kCentered)
    if (packs == 4) return norm_backward<T, kCentered, 4>;
  return packs == 1   ? norm_backward<T, kCentered, 1>
         : packs == 2 ? norm_backward<T, kCentered, 2>
                      : norm_backward<T, kCentered, 3>;
}

template <bool kCentered, class T>
void start(CudaQueue& queue, NormBackward<T> a, int64_t blocks, const char* name) {
  const int64_t packs = ceil_div(a.width, Words<T>::kWide), bytes = kSums<kCentered> * int64_t(a.padded) * 4;
  a.warps = 1;
  while (a.warps < kWarps && ceil_div(packs, 32 * a.warps) > kMostPacks<kCentered>) a.warps *= 2;
  const int each = int(ceil_div(packs, 32 * a.warps));
  if (each > kMostPacks<kCentered> || !a.packed) {
    const bool kept = fits_in_shared(queue, bytes);
    const auto kernel = kept ? wide_backward<T, kCentered, true> : wide_backward<T, kCentered, false>;
    if (kept) allow_shared(queue, kernel, bytes, name);
    kernel<<<unsigned(blocks), row_threads(a.width), size_t(kept ? bytes : 0), queue.use()>>>(a);
    return;
  }
  const auto kernel = kernel_of<T, kCentered>(each);
  kernel<<<unsigned(blocks), 32 * kWarps, size_t(a.warps < kWarps ? bytes : 0), queue.use()>>>(a);
}

float offset_of(const LayerNormBackward&) { return 0; }
float offset_of(const RmsNormBackward& op) { return op.offset; }

// Writes dx and returns the partial sums of the weight gradient; those of the bias follow half a stride
// later.
template <bool kCentered, class Op>
Partials backward(CudaQueue& queue, const Op& op, const Tensor& mean, const char* name) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1), padded = round_up(width, kPack);
  const int64_t stride = kSums<kCentered> * padded, block_rows = rows_of_a_block(rows, stride),
                blocks = ceil_div(rows, block_rows);
  auto* partial = static_cast<float*>(queue.scratch(blocks * stride * int64_t(sizeof(float))));
  if (rows > 0)
    with_type(op.x.dtype(), [&](auto t) {
      using T = decltype(t);
      const bool packed = width % kPack == 0 && aligned({op.dx, op.dy, op.x, op.weight, op.dresidual});
      start<kCentered>(queue,
                       NormBackward<T>{as<T>(op.dx), as<T>(op.dy), as<T>(op.x), as<T>(op.weight),
                                       as<T>(op.dresidual), as<float>(mean), as<float>(op.rstd), partial,
                                       rows, block_rows, int(width), int(padded), 1, packed, offset_of(op)},
                       blocks, name);
    });
  queue.launched(name);
  return {partial, stride, blocks};
}

}  // namespace

void run(const LayerNormBackward& op, Stream& stream) {
  const char* name = "LayerNormBackward";
  CudaQueue& queue = cuda_queue(stream);
  const Partials weight = backward<true>(queue, op, op.mean, name);
  const Partials bias{weight.data + weight.stride / 2, weight.stride, weight.count};
  sum_partials(queue, {{op.dweight, weight, op.accumulate_weight}, {op.dbias, bias, op.accumulate_bias}},
               name);
}

void run(const RmsNormBackward& op, Stream& stream) {
  const char* name = "RmsNormBackward";
  CudaQueue& queue = cuda_queue(stream);
  sum_partials(queue, {{op.dweight, backward<false>(queue, op, {}, name), op.accumulate}}, name);
}

}  // namespace cleave::kernels::gpu
