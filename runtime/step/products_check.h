// Whether the ranks of a job add up alike.
#pragma once
#include "runtime/step/ranks.h"

namespace cleave::runtime {

// Collective. Throws Error(usage) on every rank when their CPUs multiply in different ways
// (kernels/matmul_ways.h): copies that ranks keep of the same numbers would drift apart bit by bit, and no
// other layout would have the run's numbers. It says which ranks go which way, and what makes them alike.
// Nothing to check on GPUs.
void check_products(const Settings& settings, Ranks& ranks);

}  // namespace cleave::runtime
