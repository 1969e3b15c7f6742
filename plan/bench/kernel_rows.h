// Benchmark rows of kernels at training sizes.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/bench/operands.h"
#include "plan/bench/rounds.h"

namespace cleave::bench {

struct KernelRow {
  std::string name;  // example: "matmul/qkv/forward/bf16"
  DType type;        // of its operands; selects the limit
  std::function<Work(Operands&)> prepare;
  std::function<Work(Operands&)> by_onednn;  // oneDNN's version of a product on a CPU, or empty
};

// Returns the measurements of a kernel on the CPU, each for `seconds` per round: the kernel, and oneDNN's
// product if the kernel does not use it and oneDNN supports the type on this CPU.
std::vector<Subject> subjects_of(const KernelRow& kernel, double seconds);
// Returns a line on rows that this CPU does not support; empty if it supports all.
std::string missing_rows();

// Matrix products of GPT-2 124M; sizes on a GPU are larger, to fill it and exceed its caches.
std::vector<KernelRow> product_rows(Device device);
// Other kernels of a layer.
std::vector<KernelRow> layer_rows(Device device);
// Optimizers with this number of million parameters.
std::vector<KernelRow> update_rows(Device device, int64_t millions);

}  // namespace cleave::bench
