// Inputs and expected results of the suite, computed one element at a time.
#pragma once
#include "tests/comm/collectives.h"

namespace cleave::comm::test {

using Bytes = std::vector<std::byte>;

// Elements [first, first + numel) of a rank's input; their sums are inexact in every float type.
Bytes input(DType dtype, int rank, int64_t numel, int64_t first = 0);
// Sum over ranks in rank order; 16-bit floats are added in fp32 and rounded once.
Bytes expected_sum(DType dtype, int ranks, int64_t numel, int64_t first = 0);
Bytes expected_max(DType dtype, int ranks, int64_t numel, int64_t first = 0);
inline Bytes expected(Reduction by, DType dtype, int ranks, int64_t numel, int64_t first = 0) {
  return (by == Reduction::max ? expected_max : expected_sum)(dtype, ranks, numel, first);
}
// First `shard` elements of every rank.
Bytes expected_gather(DType dtype, int ranks, int64_t shard);

Tensor view(Bytes& bytes, DType dtype);
// Throws at the first byte that differs.
void same(const Bytes& got, const Bytes& want, const std::string& what);

}  // namespace cleave::comm::test
