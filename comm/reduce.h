// Reductions in rank order. The one place where ranks' numbers meet: because every transport calls it with
// the ranks' data in the same order, the bits of a sum depend neither on the transport nor on how a call was
// cut.
#pragma once
#include <cstddef>
#include <span>

#include "core/reduction.h"
#include "device/dtype.h"

namespace cleave::comm {

// fp32, fp64, fp16, bf16, int32 and int64 can be reduced, in both ways.
bool can_reduce(DType dtype);

// out[i] = sources[0][i], sources[1][i], ... reduced in that order. out may be one of the sources, or not
// overlap them.
void reduce_in_order(Reduction how, DType dtype, void* out, std::span<const std::byte* const> sources,
                     int64_t numel);

}  // namespace cleave::comm
