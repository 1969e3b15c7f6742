// Two correct small kernels, and variants that each omit one thing that a GPU needs.
#pragma once
#include <cuda_runtime_api.h>

namespace interpreter {

enum class Left {
  nothing,
  barrier,          // between a write to shared memory and another thread's read
  second_barrier,   // between a read and the next write
  warp_barrier,     // the same within a warp
  copy_wait,        // for copies to shared memory
  copy_barrier,     // between a copy's wait and another thread's read
  all_threads,      // at a barrier
  all_lanes,        // at a shuffle
  bounds,           // of an array in global memory
  shared_bounds,    // of the block's memory
  alignment,        // of a pair that is read at once
  first_write,      // to shared memory that is read
  product_wait,     // for a product of a warpgroup
  product_fence,    // between written registers and a product
  product_publish,  // of shared memory, before a product reads it
  product_order,    // between a product and a write to its operand
  product_barrier   // between a write to shared memory and a product
};

// Computes out[i] from 256 numbers; the test computes the same sums.
void sums(float* out, const float* in, Left left, cudaStream_t stream);
// out = (a b^T) b, all [64, 64], with a and b in bf16 and their product rounded to bf16.
void products(float* out, const void* a, const void* b, Left left, cudaStream_t stream);
// x[i] = x[i] + by
void shift(float* x, float by, int numel, cudaStream_t stream);

}  // namespace interpreter
