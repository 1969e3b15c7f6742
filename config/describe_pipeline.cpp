#include <fmt/ranges.h>

#include "config/keys.h"
#include "pipeline/schedule.h"

namespace cleave::config {

// partition_method, schedule and virtual_stages are additions to DeepSpeed's keys, where a program's code
// says such things.
void describe_pipeline(Keys& k, PipelineConfig& c) {
  const bool one = c.stages == 1;
  const char* why_one = "pipeline.stages is 1";
  k.section("pipeline", "the model's layers divided over ranks");
  k.honoured("stages", &c.stages,
             "ranks that share the layers; the others are data parallel. Micro-batches in the pipe: "
             "gradient_accumulation_steps")
      .in(0, 100'000)
      .or_null();
  k.honoured("partition_method", &c.partition_method,
             "how layers are divided: balanced (work), parameters, uniform, type:REGEX on layer names, or "
             "numbers of "
             "layers such as \"3,4,4,3\"")
      .inert_if(one, why_one);
  k.honoured("schedule", &c.schedule,
             fmt::format("{}, or a .json file with the computations of every rank",
                         fmt::join(pipeline::schedule_names(), ", ")))
      .inert_if(one, why_one);
  k.honoured("virtual_stages", &c.virtual_stages,
             "pieces of the model that each rank holds; above 1: interleaved")
      .in(1, 10'000)
      .inert_if(one, why_one);
  k.no_effect("partition", "s=\"best\"",
              "pipeline.partition_method is read; DeepSpeed does not read this key either");
  k.no_effect("seed_layers", "b=false", "initial values depend on a parameter's name, not on an order");
  k.honoured("activation_checkpoint_interval", &c.checkpoint_interval,
             "the same as activation_checkpointing.interval")
      .in(0, 1e6);
  k.no_effect("pipe_partitioned", "b=true",
              "activations travel as the tensor axis cuts them: tensor_parallel.sequence_parallel");
  k.no_effect("grad_partitioned", "b=true",
              "gradients travel as the tensor axis cuts them: tensor_parallel.sequence_parallel");
  k.no_effect("use_reentrant", "b?=null", "chooses among PyTorch's implementations of recomputation");
}

}  // namespace cleave::config
