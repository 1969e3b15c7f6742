// Sums over rows in two steps: a partial sum for each block of rows, then the partial sums in a fixed order.
// How rows are cut depends on their number only.
#pragma once
#include <algorithm>

#include "core/range.h"
#include "device/cuda/queue.h"
#include "device/tensor.h"

namespace cleave::gpu {

inline int64_t rows_of_a_block(int64_t rows) { return std::max<int64_t>(16, ceil_div(rows, 512)); }

struct Partials {
  const float* data;
  int64_t stride, count;  // elements from one partial sum to the next, and how many there are
};

// out[i] = (accumulate ? out[i] : 0) + sum over b of partials[b][i]; out is any training float type.
void sum_partials(CudaQueue& queue, const Tensor& out, const Partials& partials, bool accumulate,
                  const char* op);

}  // namespace cleave::gpu
