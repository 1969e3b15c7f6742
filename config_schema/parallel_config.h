// The part of a ds_config that cuts a model over ranks and says what is recomputed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "config_schema/choices.h"

namespace cleave::config {

struct PipelineConfig {
  int stages = 1;  // ranks that share the layers
  std::string partition_method = "balanced", schedule = "1f1b";
  int virtual_stages = 1;           // chunks of layers a rank
  int64_t checkpoint_interval = 0;  // another name of CheckpointingConfig::interval
};

// Activation checkpointing. Both numbers 0 and not lean: everything is kept.
struct CheckpointingConfig {
  int64_t interval = 0;  // layers whose forward runs again together; or
  int64_t number = 0;    // how many such groups of layers
  CheckpointingPolicy policy = CheckpointingPolicy::full;
  bool lean = false;  // resolved from policy: layers keep less, and nothing is kept by groups
  bool to_host = false;
  bool partition = false;  // over the tensor axis, where rows are not cut anyway
};

struct TensorParallelConfig {
  int autotp_size = 0, tp_size = 1;     // two names of one number; 0 and 1 leave layers whole
  bool sequence_parallel = true;        // rows between cut products are cut, too
  std::optional<bool> tp_overlap_comm;  // movements of rows run beside products; absent: on GPUs
  int64_t overlap_rows = 256;           // of a piece at least, and 64, where they do; 0: no pieces
  int size() const { return std::max({1, autotp_size, tp_size}); }
  // Products of a few rows may add in another order than those of more.
  int64_t piece_rows() const { return overlap_rows == 0 ? 0 : std::max<int64_t>(64, overlap_rows); }
};

}  // namespace cleave::config
