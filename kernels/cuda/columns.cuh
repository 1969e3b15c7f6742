// Sums over rows in two steps: a partial sum for each block of rows, then the partial sums in a fixed order.
// The division into blocks depends only on number and width of the rows.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "core/range.h"
#include "device/cuda/queue.h"
#include "device/tensor.h"

namespace cleave::kernels::gpu {

// Rows per block, for partial sums of `elements` elements. Gives eight blocks for each multiprocessor of the
// largest current GPUs, if their partial sums fit.
inline int64_t rows_of_a_block(int64_t rows, int64_t elements) {
  constexpr int64_t kBlocks = 8 * 132, kBytes = int64_t{64} << 20;
  const int64_t fit = std::max<int64_t>(1, kBytes / std::max<int64_t>(1, elements * int64_t(sizeof(float))));
  return round_up(std::max<int64_t>(16, ceil_div(rows, std::min(kBlocks, fit))), 4);
}

struct Partials {
  const float* data;
  int64_t stride, count;  // elements between partial sums, and their number
};

// out[i] = (accumulate ? out[i] : 0) + sum over b of partials[b][i]; out is any training float type.
struct ColumnSums {
  Tensor out;
  Partials partials;
  bool accumulate = false;
};

// Sums one or two outputs in one launch; both have the same width, type, stride and count.
void sum_partials(CudaQueue& queue, std::initializer_list<ColumnSums> sums, const char* op);

}  // namespace cleave::kernels::gpu
