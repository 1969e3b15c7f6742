#include "config_schema/keys.h"

namespace cleave::config {

// sequence_parallel and overlap_rows are additions to DeepSpeed's keys.
void describe_tensor_parallel(Keys& k, TensorParallelConfig& c) {
  constexpr int kMost = 100'000;
  const char* by_layer = "each layer defines its own split; results do not depend on it";
  const char* of_scripts =
      "rule for the layers of PyTorch scripts; those of cleave train define their own splits";
  k.section("tensor_parallel", "tensor parallelism");
  k.honoured("autotp_size", &c.autotp_size,
             "number of ranks that split the heads and MLP columns of each layer, and in cleave train the "
             "vocabulary; 0 and 1: off")
      .in(0, kMost);
  k.honoured(
       "sequence_parallel", &c.sequence_parallel,
       "also splits the activations between the layers over the ranks, so that none is stored twice; not "
       "in PyTorch scripts")
      .inert_if(c.size() == 1, "tensor_parallel.autotp_size is 1");
  k.no_effect("dtype", "a=\"torch.float16\"", "fp16.enabled and bf16.enabled decide the model's type");
  const bool alone = c.size() == 1, waits = c.tp_overlap_comm.has_value() && !*c.tp_overlap_comm;
  k.honoured(
       "tp_overlap_comm", &c.tp_overlap_comm,
       "communicates during the neighboring matrix products; on by default on GPUs; not in PyTorch scripts")
      .or_null()
      .inert_if(alone, "tensor_parallel.autotp_size is 1");
  k.honoured("overlap_rows", &c.overlap_rows,
             "with tp_overlap_comm, splits a product into pieces of at least this many rows (64 or more), to "
             "sum one piece during the next product; 0: no split")
      .not_in_torch("torch computes the products, unless cleave.native is true")
      .at_least(0)
      .inert_if(alone, "tensor_parallel.autotp_size is 1")
      .inert_if(waits, "tensor_parallel.tp_overlap_comm is false");
  k.no_effect("injection_policy_tuple", "l?=null", by_layer);
  k.no_effect("keep_module_on_host", "b=false", "a rank allocates its own part only");
  k.no_effect("replace_with_kernel_inject", "b=false", "Cleave has no modules to replace");
  k.honoured(
       "preset_model", &c.preset_model,
       "model family with the rules that select the layers to split in a PyTorch script; null: that of the "
       "module")
      .one_of({"llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"})
      .or_null()
      .ignoring_case()
      .only_in(Front::scripts)
      .inert_if(alone, "tensor_parallel.autotp_size is 1");
  k.no_effect("vocab_parallel_lm_head", "b?=null",
              "cleave train always splits the vocabulary; true is an error in PyTorch scripts");
  k.no_effect("vocab_parallel_ce_backend", "s(torch|liger)=\"torch\"", "the loss has one implementation");
  k.section("tensor_parallel.tp", "the tensor-parallel group");
  k.honoured("tp_size", &c.tp_size, "alias of tensor_parallel.autotp_size").in(0, kMost);
  k.no_effect("tp_grain_size", "i=1", "all ranks have equal parts");
  k.refused("mpu", "o?=null",
            "groups follow from the sizes: pipeline x data x tensor ranks, tensor innermost");
  k.refused("tp_group", "o?=null",
            "groups follow from the sizes: pipeline x data x tensor ranks, tensor innermost");
  k.section("tensor_parallel.partition_config", "rules for splitting the layers of PyTorch scripts");
  k.details("tensor_parallel.autotp_size", of_scripts,
            "tp_size:i=1 embedding_partition_dim:i=1 lm_head_patterns:l=[\"lm_head\",\"embed_out\"] "
            "use_default_specs:b=true strict_mode:b=false layer_specs:l=[] layer_specs[].patterns:l=[] "
            "layer_specs[].partition_type:s=\"column\" layer_specs[].shape:l?=null "
            "layer_specs[].partition_dim:i?=null "
            "layer_specs[].model_types:l?=null layer_specs[].gather_output:b=false "
            "layer_specs[].grad_allreduce:b=false");
}

}  // namespace cleave::config
