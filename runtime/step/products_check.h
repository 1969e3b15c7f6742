// Checks that all ranks of a job multiply matrices identically.
#pragma once
#include "runtime/step/ranks.h"

namespace cleave::runtime {

// Collective. Throws Error(usage) on every rank if their CPUs use different multiplication methods
// (kernels/matmul_ways.h), because replicated values would drift apart bit by bit and no other layout would
// reproduce the numbers of the run. The error lists the method of each rank and the way to align them. Does
// nothing on GPUs.
void check_products(const Settings& settings, Ranks& ranks);

}  // namespace cleave::runtime
