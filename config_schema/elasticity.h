// Batch sizes of DeepSpeed's section "elasticity": one train_batch_size that as many numbers of data-parallel
// ranks as possible divide, so that a job keeps its batch while its number of ranks changes. The rules are
// those of deepspeed/elasticity/elasticity.py, versions 0.1 and 0.2.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "config_schema/ds_config.h"

namespace cleave::config {

struct ElasticBatch {
  int64_t train = 0, micro = 0;
  std::vector<int64_t> data_ranks;  // numbers of data-parallel ranks with this batch, ascending
  std::string error;                // if set, the other fields are undefined
};

// For a job of `data_ranks` data-parallel ranks.
ElasticBatch elastic_batch(const ElasticityConfig& rule, int64_t data_ranks);

}  // namespace cleave::config
