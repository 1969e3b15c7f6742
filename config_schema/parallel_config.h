// The part of a ds_config for pipeline and tensor parallelism and recomputation.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config_schema/choices.h"

namespace cleave::config {

struct PipelineConfig {
  int stages = 1;  // ranks that share the layers
  std::string partition_method = "balanced", schedule = "1f1b";
  int virtual_stages = 1;           // chunks of layers per rank
  int64_t checkpoint_interval = 0;  // another name of CheckpointingConfig::interval
};

// Activation checkpointing. If both numbers are 0, lean is false and no list is set, everything is kept.
struct CheckpointingConfig {
  int64_t interval = 0;  // number of layers to recompute together; or
  int64_t number = 0;    // number of such groups
  CheckpointingPolicy policy = CheckpointingPolicy::full;
  bool lean = false;  // resolved from policy: layers keep less, without groups
  bool to_host = false;
  bool partition = false;                               // over the tensor axis, if rows are not already cut
  std::string full_layers = {}, selective_layers = {};  // "4,2,0,0"
  // Resolved from them: numbers of layers, by rank of the pipeline. A plan sets them for the policy `fit`.
  std::vector<int64_t> full = {}, selective = {};
  bool by_rank() const { return !full.empty(); }
};

struct TensorParallelConfig {
  int autotp_size = 0, tp_size = 1;     // two names of the tensor-parallel size; 0 and 1: whole layers
  bool sequence_parallel = true;        // also cut the rows between cut products
  std::optional<bool> tp_overlap_comm;  // move rows during products; absent: on GPUs
  std::string preset_model;             // family of the rules for a PyTorch script's layers
  int64_t overlap_rows = 256;           // minimum rows per piece for the overlap, at least 64; 0: no pieces
  int size() const { return std::max({1, autotp_size, tp_size}); }
  // Products of fewer rows may add in another order.
  int64_t piece_rows() const { return overlap_rows == 0 ? 0 : std::max<int64_t>(64, overlap_rows); }
};

}  // namespace cleave::config
