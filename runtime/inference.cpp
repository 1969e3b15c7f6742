#include "runtime/inference.h"

namespace cleave {

DsConfig inference_config(DsConfig c) {
  ZeroConfig& zero = c.zero;
  if (zero.stage < 3) zero.stage = 0;
  if (zero.mics_shard_size <= 0 && zero.zero_hpz_partition_size > 1)
    zero.mics_shard_size = zero.zero_hpz_partition_size;
  zero.zero_hpz_partition_size = 1;
  zero.offload_optimizer = {};
  c.gradient_accumulation_steps = 1;
  c.grad_accum_dtype.reset(), c.communication_data_type.reset();
  c.exact_sums = false;
  c.checkpointing = {};
  // Chunks stay, because a list of layers may name them.
  c.pipeline.schedule = c.pipeline.virtual_stages > 1 ? "interleaved" : "1f1b";
  return c;
}

}  // namespace cleave
