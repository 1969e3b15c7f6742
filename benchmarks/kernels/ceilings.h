// What this machine can do at most, measured in the same run as what is compared with it.
#pragma once

namespace cleave::benchmarks {

struct Ceilings {
  double flops = 0;       // fused multiply-adds in registers, two operations each, per second on all threads
  double read_bytes = 0;  // bytes read per second by a sum over a large array
  double update_bytes =
      0;  // bytes read and written per second by a plain loop that reads four arrays and writes three
};

Ceilings measure_ceilings();

}  // namespace cleave::benchmarks
