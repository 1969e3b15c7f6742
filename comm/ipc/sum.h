// Reductions of comm/reduce.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "comm/reduce.h"

namespace cleave::comm {

// reduce_in_order() of at most kMostIpcRanks sources that the stream's GPU can access, in stream order, with
// the same bits (NaN payloads may differ).
void reduce_in_order_on_gpu(Reduction how, DType dtype, void* out, std::span<const std::byte* const> sources,
                            int64_t numel, cudaStream_t stream, int device);

}  // namespace cleave::comm
