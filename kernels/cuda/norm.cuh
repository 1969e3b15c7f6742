// Shared parts of norm forward and backward.
#pragma once
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {

inline constexpr int kNormWarps = 8;  // maximum per block

// Calls body(i, Count<N>) for this thread's packs of a row.
template <class Body>
__device__ __forceinline__ void walk(int width, bool packed, Body body) {
  for (int i = int(threadIdx.x) * kPack; i < width; i += int(blockDim.x) * kPack) {
    if (packed && i + kPack <= width)
      body(i, Count<kPack>{});
    else
      for (int j = i; j < i + kPack && j < width; ++j) body(j, Count<1>{});
  }
}

}  // namespace cleave::kernels::gpu
