// Tensor-core products of 16-bit matrices in shared memory with the warp-wide instruction mma.m16n8k16 (PTX
// ISA, "Warp Level Matrix Instructions"). In an accumulator of 16 x 8, lane l holds columns 2 (l % 4) and 2
// (l % 4) + 1 of rows l / 4 (elements 0, 1) and l / 4 + 8 (elements 2, 3).
#pragma once
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {

// c += a b; a is 16 x 16, b is 16 x 8.
template <class T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// Loads four 8 x 8 matrices; lanes 8 i .. 8 i + 7 provide the row addresses of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_transposed_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// Asynchronously copies 16 bytes into shared memory; zeros if not `valid`.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_16(void* to, const void* from, bool valid) {
  copy_16(shared_address(to), from, valid);
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of this thread's copies except the last `pending` ones.
template <int pending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

template <class T>
__device__ __forceinline__ uint32_t packed(float low, float high) {
  const T values[2] = {rounded<T>(low), rounded<T>(high)};
  uint32_t bits;
  memcpy(&bits, values, 4);
  return bits;
}

// Rows of a matrix in shared memory. The pitch places eight consecutive rows in different banks.
template <class T, int D>
struct Tile {
  static constexpr int kPitch = D + 8;
  T* data;

  static constexpr int numel(int rows) { return rows * kPitch; }

  // Copies rows first .. first + kRows - 1 of a matrix with `rows` rows of `width` columns and row distance
  // `stride`; zeros beyond. width is a multiple of 8.
  template <int kRows, int kThreads>
  __device__ void fetch(const T* from, int64_t stride, int first, int rows, int width) const {
    constexpr int kChunks = D / 8;
#pragma unroll
    for (int c = threadIdx.x; c < kRows * kChunks; c += kThreads) {
      const int row = c / kChunks, column = c % kChunks * 8;
      const bool valid = first + row < rows && column < width;
      copy_16(data + row * kPitch + column, valid ? from + (first + row) * stride + column : from, valid);
    }
  }

  // Loads operand a of a product: rows row .. row + 15, columns column .. column + 15.
  __device__ void as_a(uint32_t (&r)[4], int row, int column) const {
    const int lane = threadIdx.x % 32;
    load_matrices(r, data + (row + lane % 16) * kPitch + column + lane / 16 * 8);
  }
  // Loads operand b from a tile that is b transposed: columns n .. n + 15 of b in two halves (r[0], r[1] and
  // r[2], r[3]).
  __device__ void as_transposed_b(uint32_t (&r)[4], int n, int k) const {
    const int lane = threadIdx.x % 32;
    load_matrices(r, data + (n + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * 8);
  }
  // Loads operand b from a tile that is b: rows k .. k + 15, columns n .. n + 15 in two halves.
  __device__ void as_b(uint32_t (&r)[4], int k, int n) const {
    const int lane = threadIdx.x % 32;
    load_transposed_matrices(r, data + (k + lane % 16) * kPitch + n + lane / 16 * 8);
  }
};

// c [16, 8 kTiles] = (rows row .. row + 15 of a) (rows of b)^T over D columns.
template <int kTiles, class T, int D>
__device__ __forceinline__ void multiply_rows(float (&c)[kTiles][4], const Tile<T, D>& a, int row,
                                              const Tile<T, D>& b) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    uint32_t left[4];
    a.as_a(left, row, k);
#pragma unroll
    for (int i = 0; i < kTiles; i += 2) {
      uint32_t right[4];
      b.as_transposed_b(right, i * 8, k);
      mma<T>(c[i], left, right[0], right[1]);
      mma<T>(c[i + 1], left, right[2], right[3]);
    }
  }
}

// c [16, D] += a b; a [16, 8 kTiles] is an accumulator rounded to T, b the first rows of a tile.
template <int kTiles, class T, int D>
__device__ __forceinline__ void add_product(float (&c)[D / 8][4], const float (&a)[kTiles][4],
                                            const Tile<T, D>& b) {
#pragma unroll
  for (int k = 0; k < kTiles; k += 2) {
    const uint32_t left[4] = {packed<T>(a[k][0], a[k][1]), packed<T>(a[k][2], a[k][3]),
                              packed<T>(a[k + 1][0], a[k + 1][1]), packed<T>(a[k + 1][2], a[k + 1][3])};
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t right[4];
      b.as_b(right, k * 8, n * 8);
      mma<T>(c[n], left, right[0], right[1]);
      mma<T>(c[n + 1], left, right[2], right[3]);
    }
  }
}

// Stores rows of an accumulator [16, D], up to `rows` rows and `width` columns.
template <class T, int D>
__device__ __forceinline__ void store_rows(T* to, int64_t stride, int first, int rows, int width,
                                           const float (&c)[D / 8][4], float low, float high) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane / 4 + half * 8;
    if (row >= rows) continue;
    const float factor = half ? high : low;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      if (column < width)
        *reinterpret_cast<uint32_t*>(to + row * stride + column) =
            packed<T>(c[n][half * 2] * factor, c[n][half * 2 + 1] * factor);
    }
  }
}

}  // namespace cleave::kernels::gpu
