// Small kernels that are right, and the same with one thing left out that a GPU needs and a test of numbers
// may not miss.
#pragma once
#include <cuda_runtime_api.h>

namespace interpreter {

enum class Left {
  nothing,
  barrier,         // between a write to shared memory and another thread's read
  second_barrier,  // between a read and the next write
  warp_barrier,    // the same within a warp
  copy_wait,       // for copies to shared memory
  copy_barrier,    // between a copy's wait and another thread's read
  all_threads,     // at a barrier
  all_lanes,       // at a shuffle
  bounds,          // of an array in global memory
  shared_bounds,
  alignment,
  first_write,      // to shared memory that is read
  product_wait,     // for a product of a warpgroup
  product_fence,    // between registers that were written and a product
  product_publish,  // of shared memory, before a product reads it
  product_order     // a tile is overwritten while a product may read it
};

// out[i] of 256 = sums of `in`, by one block; the numbers are right where nothing is left out.
void sums(float* out, const float* in, Left left, cudaStream_t stream);
// out [64, 64] = a [64, 16] b^T [64, 16] in bf16, twice, by one warpgroup.
void product(float* out, const void* a, const void* b, Left left, cudaStream_t stream);

}  // namespace interpreter
