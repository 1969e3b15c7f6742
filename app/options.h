// Options that several subcommands share, and what they stand for.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "device/memory.h"
#include "model/layer.h"

namespace cleave {

struct ModelOptions {
  std::string model = "tiny";
  std::string tokenizer = "byte";
  int64_t seq_len = 256;
};

struct RankOptions {
  std::string transport = "auto", device = "auto", device_memory, host_memory;
  int local_rank = -1;  // accepted from launchers and cross-checked
};

void add_options(CLI::App& app, ModelOptions& options);
void add_options(CLI::App& app, RankOptions& options);

// The vocabulary of a model: the preset's own, except that tiny takes that of the data.
int64_t vocabulary_of(const std::string& model, int64_t data_vocab);

// Error(usage) for an unknown model, a tokenizer that is not built, or a seq_len beyond the model's
// positions.
Model make_model(const ModelOptions& options, int64_t vocab, DType dtype);

// From --device_memory and --host_memory, or the variables CLEAVE_DEVICE_MEMORY and CLEAVE_HOST_MEMORY.
MemoryLimits memory_limits(const RankOptions& options);

}  // namespace cleave
