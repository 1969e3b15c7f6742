// What this machine can do at most, measured in the same run as what is compared with it.
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
      0;  // FLOPs a second: multiply-adds on registers, two operations each; a GPU's bf16 product of 8192^3
  double bf16 =
      0;  // the same with products of bf16 added up in fp32, by the widest instruction that there is
  double read_bytes = 0;  // bytes a second that a sum over a large array reads
  double update_bytes =
      0;  // read and written by a plain loop that reads four arrays and writes three; a GPU's copy

  // Of products of a type, which may be computed in fp32 where that is faster.
  double flops(DType type) const { return type == DType::bf16 ? std::max(bf16, fp32) : fp32; }
};

// On one thread of a CPU the processor's time counts, which a busy machine does not disturb, else the wall's.
Limits measure_limits(Device device);

// The same of the CPU, each as a row.
std::vector<Subject> limit_rows();
// What those rows are to others: to arithmetic in a type, of which a unit of the row is 1 / times GFLOP, and
// to bytes that are only read, or read and written.
std::vector<Bound> flops_bounds(DType type, const std::string& words = "on registers", double times = 1);
std::vector<Bound> bytes_bounds(bool reads_only);

}  // namespace cleave::bench
