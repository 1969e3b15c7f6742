// Sums in rank order. The one place where ranks' numbers meet: because every transport calls it with the
// ranks' data in the same order, the bits of a sum depend neither on the transport nor on how a call was cut.
#pragma once
#include <cstddef>
#include <span>

#include "device/dtype.h"

namespace cleave::comm {

// fp32, fp64, fp16, bf16, int32 and int64 can be summed.
bool can_sum(DType dtype);

// out[i] = sources[0][i] + sources[1][i] + ..., added in that order; 16-bit floats are added in fp32 and
// rounded once, integers wrap. out may be one of the sources, or not overlap them.
void sum_in_order(DType dtype, void* out, std::span<const std::byte* const> sources, int64_t numel);

}  // namespace cleave::comm
