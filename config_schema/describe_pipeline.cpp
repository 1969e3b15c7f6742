#include <fmt/ranges.h>

#include "config_schema/keys.h"
#include "pipeline/schedule.h"

namespace cleave::config {

// partition_method, schedule and virtual_stages are additions to DeepSpeed's keys; in DeepSpeed the
// program sets them.
void describe_pipeline(Keys& k, PipelineConfig& c) {
  const bool one = c.stages == 1;
  const char* why_one = "pipeline.stages is 1";
  k.section("pipeline", "pipeline parallelism");
  k.honoured("stages", &c.stages,
             "number of pipeline stages; the remaining ranks are data parallel. Micro-batches in flight: "
             "gradient_accumulation_steps")
      .in(0, 100'000)
      .or_null();
  k.honoured("partition_method", &c.partition_method,
             "distribution of the layers: balanced (work), parameters, uniform, type:REGEX on layer names, "
             "or layers per stage such as \"3,4,4,3\"")
      .inert_if(one, why_one);
  k.honoured("schedule", &c.schedule,
             fmt::format("{}, or a .json file with the computations of each rank",
                         fmt::join(pipeline::schedule_names(), ", ")))
      .inert_if(one, why_one);
  k.honoured("virtual_stages", &c.virtual_stages, "model chunks per rank; above 1: interleaved")
      .in(1, 10'000)
      .inert_if(one, why_one);
  k.no_effect("partition", "s=\"best\"",
              "pipeline.partition_method is the key; DeepSpeed does not read this one either");
  k.no_effect("seed_layers", "b=false", "initial values depend on the parameter name, not on an order");
  k.honoured("activation_checkpoint_interval", &c.checkpoint_interval,
             "same as activation_checkpointing.interval")
      .in(0, 1e6);
  k.no_effect("pipe_partitioned", "b=true",
              "tensor_parallel.sequence_parallel decides the layout of sent activations");
  k.no_effect("grad_partitioned", "b=true",
              "tensor_parallel.sequence_parallel decides the layout of sent gradients");
  k.no_effect("use_reentrant", "b?=null", "selects a PyTorch implementation of recomputation");
}

}  // namespace cleave::config
