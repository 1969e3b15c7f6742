// DeepSpeed keys of unsupported tools (monitors, profilers, tuners, compression, inference): values
// that disable them, and the effect of others.
#include <fmt/core.h>

#include "config_schema/keys.h"

namespace cleave::config {
namespace {

void unbuilt_monitors(Keys& k) {
  k.section("", "");
  k.no_effect("log_level", "s(debug|info|warning|error|critical)=null",
              "messages are few and have no levels");
  k.section("comet", "Comet");
  k.refused("enabled", "b=false",
            "no metrics to Comet; use cleave.mlflow, tensorboard or csv_monitor, or wandb in a script");
  k.details(
      "comet.enabled", "Comet",
      "samples_log_interval:i=100 project:s?=null workspace:s?=null api_key:s?=null experiment_name:s?=null "
      "experiment_key:s?=null online:b?=null mode:s(get|create|get_or_create)=null");
  k.section("timers", "timers");
  k.section("timers.throughput", "throughput");
  k.no_effect("enabled", "b=true", "throughput is always measured, at no cost");
  k.no_effect("synchronized", "b=true", "the step time is taken after the step's work has ended");
}

void unbuilt_datastates(Keys& k) {
  k.section("", "");
  k.refused("datastates_ckpt", "a=false", "checkpoint.async writes in the background without this library",
            "null");
  k.details("datastates_ckpt", "asynchronous checkpoints", "datastates_ckpt.host_cache_size:i?=null");
}

void unbuilt_tuners(Keys& k) {
  k.section("compile", "compilation at run time");
  for (const char* name : {"deepcompile", "autoep_non_moe"})
    k.no_effect(name, "b=false", "the kernels are compiled in");
  k.details(
      "compile.deepcompile", "compilation at run time",
      "free_activation:b=false free_activation_threshold:i=10485760 offload_activation:b=false "
      "offload_activation_pin_memory:b=true offload_opt_states:b=false double_buffer:b=true "
      "symmetric_memory:b=false "
      "debug_log:b=false offload_parameters:b=false sync_before_reduce:b=false sync_after_reduce:b=false "
      "sync_before_allgather:b=false sync_after_allgather:b=false keep_int_input_tensors:b=true "
      "keep_all_input_tensors:b=false passes:l?(z1|z3|autosp|autotp)=null");
  k.section("autotuning", "search for a fast configuration");
  k.no_effect("enabled", "b=false", "configurations are not searched")
      .inert_if(true,
                "DeepSpeed searches configurations only if its launcher gets --autotuning; the training uses "
                "the values of this file");
  k.details(
      "autotuning.enabled", "search for a fast configuration",
      "fast:b=true results_dir:s=\"autotuning_results\" exps_dir:s=\"autotuning_exps\" overwrite:b=true "
      "start_profile_step:i=3 end_profile_step:i=5 "
      "metric:s(throughput|latency|FLOPS_per_gpu|fwd|bwd|step)=\"throughput\" "
      "metric_path:s?=null tuner_type:s(gridsearch|random|model_based)=\"gridsearch\" "
      "tuner_early_stopping:i=5 "
      "tuner_num_trials:i=50 arg_mappings:o?=null arg_mappings.<argument>:a=null model_info:o?=null "
      "model_info.profile:b=false model_info.num_params:i?=null model_info.hidden_size:i?=null "
      "model_info.num_layers:i?=null model_info_path:s?=null mp_size:i=1 max_train_batch_size:i?=null "
      "min_train_batch_size:i=1 max_train_micro_batch_size_per_gpu:i=1024 "
      "min_train_micro_batch_size_per_gpu:i=1 "
      "num_tuning_micro_batch_sizes:i=3");
  k.section("hybrid_engine", "training and generation in one engine");
  k.warned("enabled", "b=false",
           "changes only the speed of generation in DeepSpeed; module.generate() uses the trained weights");
  constexpr const char* kSpeed = "a setting of generation in DeepSpeed";
  for (const auto& [name, form] : {std::pair{"inference_tp_size", "i=1"},
                                   {"release_inference_cache", "b=false"},
                                   {"pin_parameters", "b=true"},
                                   {"tp_gather_partition_size", "i=8"},
                                   {"enable_cuda_graph", "b=false"}})
    k.no_effect(name, form, kSpeed);
  k.no_effect("max_out_tokens", "i=512", kSpeed).at_least(1);
}

void unbuilt_sparse_attention(Keys& k) {
  k.section("sparse_attention", "sparse attention");
  k.list.back().status = Status::refused, k.list.back().off = {"{}", "null"},
  k.list.back().default_text = "null";
  k.list.back().meaning = "attention covers all earlier positions";
  k.details("sparse_attention", "sparse attention",
            "mode:s(dense|fixed|variable|bigbird|bslongformer)=\"fixed\" block:i=16 "
            "different_layout_per_head:b=false "
            "num_local_blocks:i=4 num_global_blocks:i=1 "
            "attention:s(bidirectional|unidirectional)=\"bidirectional\" "
            "horizontal_global_attention:b=false num_different_global_patterns:i=1 num_random_blocks:i=0 "
            "local_window_blocks:l=[4] global_block_indices:l=[0] global_block_end_indices:l?=null "
            "num_sliding_window_blocks:i=3");
}

void unbuilt_compression(Keys& k) {
  struct Technique {
    const char *name, *shared, *group;
  };
  constexpr Technique techniques[] = {
      {"weight_quantization",
       "quantizer_kernel:b=false schedule_offset:i=0 quantize_groups:i=1 quantize_verbose:b=false "
       "quantization_type:s(symmetric|asymmetric)=\"symmetric\" quantize_weight_in_forward:b=false "
       "rounding:s(nearest|stochastic)=\"nearest\" fp16_mixed_quantize:o?=null "
       "fp16_mixed_quantize.enabled:b=false "
       "fp16_mixed_quantize.quantize_change_ratio:n=0.001",
       "start_bits:i?=null target_bits:i?=null quantization_period:i=1"},
      {"activation_quantization",
       "quantization_type:s(symmetric|asymmetric)=\"symmetric\" "
       "range_calibration:s(dynamic|static)=\"dynamic\" "
       "schedule_offset:i=1000",
       "bits:i?=null"},
      {"sparse_pruning",
       "method:s(l1|topk|snip_momentum)=\"l1\" schedule_offset:i=1000 block_pattern:s=\"4x1\" "
       "dense_ratio:n=0.1 "
       "schedule_offset_stride:i=1 schedule_offset_end:i?=null excluded_modules:l=[]",
       "dense_ratio:n?=null"},
      {"row_pruning", "method:s(l1|topk)=\"l1\" schedule_offset:i=1000", "dense_ratio:n?=null"},
      {"head_pruning", "method:s(l1|topk)=\"topk\" schedule_offset:i=1000 num_heads:i?=null",
       "dense_ratio:n?=null"},
      {"channel_pruning", "method:s(l1|topk)=\"l1\" schedule_offset:i=1000", "dense_ratio:n?=null"},
  };
  k.section("compression_training", "compression during training");
  for (const Technique& t : techniques) {
    const std::string base = fmt::format("compression_training.{}", t.name);
    const std::string with = base + ".shared_parameters.enabled", what = "compression during training";
    k.section(base, what);
    k.details(with, what, "different_groups:o?=null");
    k.section(base + ".shared_parameters", what);
    k.refused("enabled", "b=false", "no compression during training");
    k.details(with, what, t.shared);
    k.section(base + ".different_groups.<group>", what);
    k.details(with, what, "modules:a=\"*\" related_modules:l?=null params:o?=null");
    k.section(base + ".different_groups.<group>.params", what);
    k.details(with, what, t.group);
  }
  k.section("compression_training.layer_reduction", "training a model with fewer layers");
  k.refused("enabled", "b=false", "no compression during training");
  k.details(
      "compression_training.layer_reduction.enabled", "training a model with fewer layers",
      "keep_number_layer:i?=null module_name_prefix:s?=null teacher_layer:l?=null other_module_name:l?=null");
}

void unbuilt_inference(Keys& k) {
  k.section("weight_quantization", "quantized weights for inference");
  k.list.back().status = Status::refused, k.list.back().off = {"{}", "null", "disabled"};
  k.list.back().default_text = "null", k.list.back().meaning = "weights are not quantized";
  const std::string what = "quantized weights for inference";
  k.details(
      "weight_quantization", what,
      "enabled:b=true num_bits:i=8 q_type:s(sym|asym)=\"sym\" q_groups:i=1 quantized_initialization:o={} "
      "post_init_quant:o={}");
  constexpr const char* kForms = "num_bits:i?=null group_size:i?=null group_dim:i?=null symmetric:b?=null";
  k.section("weight_quantization.quantized_initialization", what);
  k.details("weight_quantization", what, kForms);
  k.section("weight_quantization.post_init_quant.<name>", what);
  k.details("weight_quantization", what, kForms);
}

}  // namespace

void describe_unbuilt_tools(Keys& keys) {
  unbuilt_monitors(keys);
  unbuilt_datastates(keys);
  unbuilt_tuners(keys);
  unbuilt_sparse_attention(keys);
  unbuilt_compression(keys);
  unbuilt_inference(keys);
}

}  // namespace cleave::config
