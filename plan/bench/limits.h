// Limits of this machine, measured in the same run as the rows compared with them.
#pragma once
#include <algorithm>
#include <vector>

#include "device/device.h"
#include "device/dtype.h"
#include "plan/bench/rounds.h"

namespace cleave::bench {

// Rates of all threads of the team together, or of a GPU; each the best of several attempts.
struct Limits {
  double fp32 =
      0;  // FLOP/s: multiply-adds on registers, two operations each; on a GPU a bf16 product of 8192^3
  double bf16 = 0;        // FLOP/s of bf16 products with fp32 sums, with the widest supported instruction
  double read_bytes = 0;  // bytes per second read by a sum over a large array
  double update_bytes =
      0;  // bytes per second of a plain loop that reads four arrays and writes three; on a GPU of a copy

  // Returns the limit for products of a type, which may be computed in fp32 if that is faster.
  double flops(DType type) const { return type == DType::bf16 ? std::max(bf16, fp32) : fp32; }
};

// Uses processor time for one CPU thread, which other load does not disturb, and wall time otherwise.
Limits measure_limits(Device device);

// The CPU's limits, each as a row.
std::vector<Subject> limit_rows();
// Returns limits from those rows for other rows: for arithmetic in a type, with 1 / times GFLOP per unit, and
// for bytes that are only read, or read and written.
std::vector<Bound> flops_bounds(DType type, const std::string& words = "on registers", double times = 1);
std::vector<Bound> bytes_bounds(bool reads_only);

}  // namespace cleave::bench
