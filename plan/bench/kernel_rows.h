// Kernels at training sizes, each a row that can be measured.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/bench/operands.h"
#include "plan/bench/rounds.h"

namespace cleave::bench {

struct KernelRow {
  std::string name;  // "matmul/qkv/forward/bf16"
  DType type;        // of its operands, whose limit it has
  std::function<Work(Operands&)> prepare;
  std::function<Work(Operands&)> by_onednn;  // of a product on a CPU the same by oneDNN, or none
};

// Measurements of a kernel on the CPU, each for `seconds` per round: the kernel, and oneDNN's product if the
// kernel does not use it and oneDNN supports the type on this CPU.
std::vector<Subject> subjects_of(const KernelRow& kernel, double seconds);
// A line on rows that this CPU cannot have; empty if it can have all.
std::string missing_rows();

// Matrix products of GPT-2 124M; sizes on a GPU are larger, to fill it and to be beyond its caches.
std::vector<KernelRow> product_rows(Device device);
// What else is in a layer.
std::vector<KernelRow> layer_rows(Device device);
// Optimizers, of so many million parameters.
std::vector<KernelRow> update_rows(Device device, int64_t millions);

}  // namespace cleave::bench
