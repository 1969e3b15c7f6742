// Tensor-core products of a warpgroup (four warps, the index of the first is a multiple of four) on Hopper's
// asynchronous wgmma.mma_async.m64nNk16 (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"), for
// files compiled for sm_90a. Warp w of the group holds rows 16 w .. 16 w + 15 of an accumulator of 64 rows,
// each tile of 8 columns as in mma.cuh. The same holds for an operand a in registers.
//
// A product runs from commit_products() until wait_for_products() returns for its group. Until then, its
// accumulator, its a in registers and its tiles must not be accessed. The order of a step is:
// begin_products(), products, commit_products(), ..., wait_for_products<n>(), settle() for every array of
// registers that is free again.
#pragma once
#include "kernels/cuda/mma.cuh"

namespace cleave::kernels::gpu {

inline constexpr int kWarpgroup = 128;

// Makes this thread's earlier writes to registers visible to later products that read or add to them.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all groups except the last `pending` ones.
template <int pending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Makes this thread's writes to shared memory, including awaited copies, visible to products after the next
// barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Prevents the compiler from reading these earlier or reusing known values, because a product wrote or read
// them.
template <int kTiles>
__device__ __forceinline__ void settle(float (&c)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
}
template <int kSteps>
__device__ __forceinline__ void settle(uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[k][i])::"memory");
}

// Operand lists of an accumulator of 8, 10, 12 or 16 tiles, in assembly and in C++.
#define CLEAVE_REGISTERS_32                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
  ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CLEAVE_REGISTERS_40 CLEAVE_REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define CLEAVE_REGISTERS_48 CLEAVE_REGISTERS_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define CLEAVE_REGISTERS_64 \
  CLEAVE_REGISTERS_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define CLEAVE_TILE(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define CLEAVE_TILES_2(c, n) CLEAVE_TILE(c, n), CLEAVE_TILE(c, n + 1)
#define CLEAVE_TILES_4(c, n) CLEAVE_TILES_2(c, n), CLEAVE_TILES_2(c, n + 2)
#define CLEAVE_TILES_8(c) CLEAVE_TILES_4(c, 0), CLEAVE_TILES_4(c, 4)
#define CLEAVE_TILES_10(c) CLEAVE_TILES_8(c), CLEAVE_TILES_2(c, 8)
#define CLEAVE_TILES_12(c) CLEAVE_TILES_8(c), CLEAVE_TILES_4(c, 8)
#define CLEAVE_TILES_16(c) CLEAVE_TILES_12(c), CLEAVE_TILES_4(c, 12)

// Product with a and b by rows; `a`, `b` and `add` are the operands after the accumulator's.
#define CLEAVE_SHARED_PRODUCT(type, n, tiles, registers, a_at, b_at, add_at)                                 \
  asm volatile("{.reg .pred more; setp.ne.b32 more, %" #add_at                                               \
               ", 0;\n"                                                                                      \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" registers "}, %" #a_at \
               ", %" #b_at ", more, 1, 1, 0, 0;}"                                                            \
               : CLEAVE_TILES_##tiles(c)                                                                     \
               : "l"(a), "l"(b), "r"(add))

// c = a b^T, or c += a b^T with `add`; 64 rows of a and 8 kTiles rows of b, 16 columns each.
template <class T, int kTiles>
__device__ __forceinline__ void multiply_shared(float (&c)[kTiles][4], uint64_t a, uint64_t b, int add) {
  static_assert(kTiles == 8 || kTiles == 12 || kTiles == 16);
  constexpr bool brain = std::is_same_v<T, Bf16>;
  if constexpr (kTiles == 8 && brain)
    CLEAVE_SHARED_PRODUCT(bf16, 64, 8, CLEAVE_REGISTERS_32, 32, 33, 34);
  else if constexpr (kTiles == 8)
    CLEAVE_SHARED_PRODUCT(f16, 64, 8, CLEAVE_REGISTERS_32, 32, 33, 34);
  else if constexpr (kTiles == 12 && brain)
    CLEAVE_SHARED_PRODUCT(bf16, 96, 12, CLEAVE_REGISTERS_48, 48, 49, 50);
  else if constexpr (kTiles == 12)
    CLEAVE_SHARED_PRODUCT(f16, 96, 12, CLEAVE_REGISTERS_48, 48, 49, 50);
  else if constexpr (brain)
    CLEAVE_SHARED_PRODUCT(bf16, 128, 16, CLEAVE_REGISTERS_64, 64, 65, 66);
  else
    CLEAVE_SHARED_PRODUCT(f16, 128, 16, CLEAVE_REGISTERS_64, 64, 65, 66);
}

// Product with a from registers and b read across its rows.
#define CLEAVE_REGISTER_PRODUCT(type, n, tiles, registers, a0, a1, a2, a3, b_at)                             \
  asm volatile(                                                                                              \
      "{.reg .pred more; setp.ne.b32 more, 1, 0;\n"                                                          \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" registers "}, {%" #a0 ", %" #a1 \
      ", %" #a2 ", %" #a3 "}, %" #b_at ", more, 1, 1, 1;}"                                                   \
      : CLEAVE_TILES_##tiles(c)                                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// c += a b; a is 64 x 16, b is 16 rows of 8 kTiles columns.
template <class T, int kTiles>
__device__ __forceinline__ void add_multiplied(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kTiles == 8 || kTiles == 10 || kTiles == 12 || kTiles == 16);
  constexpr bool brain = std::is_same_v<T, Bf16>;
  if constexpr (kTiles == 8 && brain)
    CLEAVE_REGISTER_PRODUCT(bf16, 64, 8, CLEAVE_REGISTERS_32, 32, 33, 34, 35, 36);
  else if constexpr (kTiles == 8)
    CLEAVE_REGISTER_PRODUCT(f16, 64, 8, CLEAVE_REGISTERS_32, 32, 33, 34, 35, 36);
  else if constexpr (kTiles == 10 && brain)
    CLEAVE_REGISTER_PRODUCT(bf16, 80, 10, CLEAVE_REGISTERS_40, 40, 41, 42, 43, 44);
  else if constexpr (kTiles == 10)
    CLEAVE_REGISTER_PRODUCT(f16, 80, 10, CLEAVE_REGISTERS_40, 40, 41, 42, 43, 44);
  else if constexpr (kTiles == 12 && brain)
    CLEAVE_REGISTER_PRODUCT(bf16, 96, 12, CLEAVE_REGISTERS_48, 48, 49, 50, 51, 52);
  else if constexpr (kTiles == 12)
    CLEAVE_REGISTER_PRODUCT(f16, 96, 12, CLEAVE_REGISTERS_48, 48, 49, 50, 51, 52);
  else if constexpr (brain)
    CLEAVE_REGISTER_PRODUCT(bf16, 128, 16, CLEAVE_REGISTERS_64, 64, 65, 66, 67, 68);
  else
    CLEAVE_REGISTER_PRODUCT(f16, 128, 16, CLEAVE_REGISTERS_64, 64, 65, 66, 67, 68);
}
}  // namespace cleave::kernels::gpu
