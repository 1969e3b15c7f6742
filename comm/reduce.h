// Reductions in rank order: the only place that combines values of ranks. Every transport passes the ranks'
// data in the same order, so the bits of a sum depend on neither the transport nor the chunking.
#pragma once
#include <cstddef>
#include <span>

#include "core/reduction.h"
#include "device/dtype.h"

namespace cleave::comm {

// True for fp32, fp64, fp16, bf16, int32 and int64, for both reductions.
bool can_reduce(DType dtype);

// out[i] = reduction of sources[0][i], sources[1][i], ... in this order. `out` may equal a source but must
// not overlap one otherwise.
void reduce_in_order(Reduction how, DType dtype, void* out, std::span<const std::byte* const> sources,
                     int64_t numel);

}  // namespace cleave::comm
