// The three batch sizes: train_batch_size = train_micro_batch_size_per_gpu *
// gradient_accumulation_steps * data-parallel size. Any one may be missing; with only
// train_batch_size or only the micro-batch, the accumulation is 1.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace cleave::config {

struct BatchSizes {
  std::optional<int64_t> train, micro, accumulation;
  bool operator==(const BatchSizes&) const = default;
};

struct SolvedBatch {
  BatchSizes sizes;   // all three, if error is empty
  std::string error;  // values, data-parallel size, the nearest valid sizes and numbers of ranks
};

// `origin` names the source of the data-parallel size; may be empty.
SolvedBatch solve_batch(const BatchSizes& given, int64_t data_parallel_size, const std::string& origin = {});

}  // namespace cleave::config
