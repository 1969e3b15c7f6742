// Rows of a 16-bit matrix in shared memory in wgmma's layout, readable by rows and across them.
#pragma once
#include "kernels/cuda/wgmma.cuh"

namespace cleave::kernels::gpu {

// kRows rows of D columns. Columns are divided into strips of kLine bytes, the widest swizzle that divides D.
// A strip holds its rows consecutively; inside it, the 16-byte pieces of a line are permuted so that eight
// rows of one column are in different banks: bits 4 .. 6 of an address are XORed with bits 7 .. 9, as many
// bits as kLine has (PTX ISA, "Shared Memory Matrix Layout"). The address is in the shared window and a
// multiple of 1024.
template <class T, int D, int kRows>
struct SwizzledTile {
  static constexpr int kLine = D % 64 == 0   ? 128
                               : D % 32 == 0 ? 64
                                             : 32,
                       kStrip = kRows * kLine, kBytes = kRows * D * 2;
  static_assert(sizeof(T) == 2 && D % 16 == 0 && kRows % 16 == 0 && kBytes % 1024 == 0);
  uint32_t address;

  // Byte offset of a row's pieces from `column` on; `column` is a multiple of 8.
  __host__ __device__ static constexpr uint32_t offset(uint32_t row, uint32_t column) {
    const uint32_t plain = row * kLine + column * 2 % kLine;
    return column * 2 / kLine * kStrip + (plain ^ (plain >> 3 & (kLine - 16)));
  }

  // Same as Tile::fetch. The source of a zero-byte copy is also a valid address, but is not read.
  template <int kThreads>
  __device__ __forceinline__ void fetch(const T* from, int64_t stride, int first, int rows, int width) const {
    constexpr uint32_t kPieces = D / 8, kAll = kRows * kPieces, kStep = kThreads / kPieces;
    if constexpr (kThreads % kPieces == 0 && kStep % 8 == 0 &&
                  kAll % kThreads == 0) {  // a thread keeps its column
      const uint32_t row = threadIdx.x / kPieces, column = threadIdx.x % kPieces * 8,
                     to = address + offset(row, column);
      const int left = int(column) < width ? rows - first - int(row) : 0;
      const T* p = from + (first + int(row)) * stride + column;
#pragma unroll
      for (uint32_t i = 0; i < kAll / kThreads; ++i)
        copy_16(to + i * kStep * kLine, p + i * (kStep * stride), int(i * kStep) < left);
    } else {
#pragma unroll
      for (uint32_t begin = 0; begin < kAll; begin += kThreads) {
        const uint32_t c = begin + threadIdx.x, row = c / kPieces, column = c % kPieces * 8;
        if (kAll % kThreads != 0 && c >= kAll) break;
        const bool valid = first + int(row) < rows && int(column) < width;
        copy_16(address + offset(row, column), from + (first + int(row)) * stride + column, valid);
      }
    }
  }

  // Matrix descriptor of the data at byte `begin`. `across` is the distance of strips, used only for an
  // operand that is read across its rows; groups of eight rows are 8 kLine bytes apart.
  __device__ __forceinline__ uint64_t descriptor(uint32_t begin, uint32_t across) const {
    constexpr uint32_t kSwizzle = kLine == 128  ? 1
                                  : kLine == 64 ? 2
                                                : 3,
                       kHigh = 8 * kLine / 16 | kSwizzle << 30;
    return uint64_t(kHigh) << 32 | ((address / 16 | across / 16 << 16) + begin / 16);
  }
  // Operand by rows (K-major): rows from `row` (a multiple of 8) on, columns k .. k + 15.
  __device__ __forceinline__ uint64_t by_rows(uint32_t row, uint32_t k) const {
    return descriptor(k * 2 / kLine * kStrip + row * kLine + k * 2 % kLine, 16);
  }
  // Operand across the rows (MN-major): rows row .. row + 15 (a multiple of 8), all columns.
  __device__ __forceinline__ uint64_t across_rows(uint32_t row) const {
    return descriptor(row * kLine, kStrip);
  }
};

// c [64, 8 kTiles] = (rows row .. row + 63 of a) (all rows of b)^T.
template <int kTiles, class T, int D, int kRows>
__device__ __forceinline__ void multiply_rows(float (&c)[kTiles][4], const SwizzledTile<T, D, kRows>& a,
                                              int row, const SwizzledTile<T, D, kTiles * 8>& b) {
#pragma unroll
  for (int k = 0; k < D; k += 16) multiply_shared<T>(c, a.by_rows(row, k), b.by_rows(0, k), k > 0);
}

// c [64, D] += a b; a is 64 x kRows in registers.
template <class T, int D, int kRows>
__device__ __forceinline__ void add_product(float (&c)[D / 8][4], const uint32_t (&a)[kRows / 16][4],
                                            const SwizzledTile<T, D, kRows>& b) {
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k) add_multiplied<T>(c, a[k], b.across_rows(k * 16));
}

// Rounds an accumulator to T, as operand a of the next product.
template <class T, int kTiles>
__device__ __forceinline__ void pack(uint32_t (&a)[kTiles / 2][4], const float (&c)[kTiles][4]) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[k][i] = packed<T>(c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1]);
}

// Forces the arithmetic of x to complete before later code. The assembler may move a wait for products up
// past arithmetic, which then no longer overlaps them, but it does not move a wait past a store. `slot` is
// this thread's word of shared memory.
__device__ __forceinline__ void finish_first(float x, uint32_t slot) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(slot), "f"(x) : "memory");
}

// Index of this thread's warpgroup in the block, uniform over all lanes.
__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(0xffffffffu, int(threadIdx.x) / kWarpgroup, 0);
}

}  // namespace cleave::kernels::gpu
