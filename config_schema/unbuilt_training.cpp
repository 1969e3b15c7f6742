// DeepSpeed keys of unsupported training features: values that disable them, and the effect of
// others.
#include "config_schema/keys.h"

namespace cleave::config {
namespace {

void unbuilt_top_level(Keys& k) {
  k.section("", "");
  k.refused("managed_gradient_accumulation", "b=true",
            "the program counts the micro-batches of a step itself");
  k.refused("sparse_gradients", "b=false", "embedding gradients are summed dense");
  k.no_effect("data_parallel_size", "i?=null", "derived from the number of ranks, and checked against it")
      .at_least(1);
  k.no_effect("seq_parallel_communication_data_type", "s=\"fp32\"",
              "sequence-parallel ranks exchange activations in the model's type; gradients are reduced as "
              "over data-parallel ranks")
      .one_of({"fp32", "fp16", "bf16"})
      .ignoring_case();
  k.no_effect("disable_allgather", "b=false", "updated parameters are always all-gathered");
  k.no_effect("allgather_size", "i=500000000",
              "used only with the old form zero_optimization: true; zero_optimization.allgather_bucket_size "
              "is the new name")
      .at_least(0);
  k.no_effect("graph_harvesting", "b=false", "cleave.cuda_graphs enables CUDA graphs");
  k.no_effect("zero_allow_untested_optimizer", "b=false",
              "every optimizer is tested with every ZeRO stage; a script's own optimizer needs this key");
  k.no_effect("zero_force_ds_cpu_optimizer", "b=true", "an offloaded optimizer always uses the CPU kernel");
  k.no_effect("vocabulary_size", "i?=null", "the model defines the vocabulary size");
  k.no_effect("disable_python_gc", "b=false",
              "the training allocates no objects for Python's garbage collector");
  k.no_effect("use_data_before_expert_parallelism", "b=false", "Cleave has no expert groups to order");

  k.section("optimizer.params", "");
  const char* others = "belongs to an unsupported optimizer";
  k.details(
      "optimizer.type", others,
      "max_grad_norm:n=0.0 freeze_step:i=100000 cuda_aware:b=false "
      "comm_backend_name:s(nccl|mpi|hccl|compressed)=\"nccl\" var_freeze_step:i=100000 "
      "var_update_scaler:i=16 "
      "local_step_scaler:i=32678 local_step_clipper:i=16 coeff_beta:n=0.9 factor_max:n=4.0 factor_min:n=0.5 "
      "factor_threshold:n=0.1 muon_lr:n?=null adam_lr:n?=null ns_method:s(gram|standard)=\"gram\"");
  k.refused("<torch kwargs>", "a=null", "parameters of other PyTorch optimizers, which are not supported")
      .listed_only = true;
  k.refused("<mup kwargs>", "a=null", "parameters of the mup optimizers, which are not supported")
      .listed_only = true;
}

void unbuilt_precision(Keys& k) {
  k.section("amp", "mixed precision by Apex");
  k.refused("enabled", "b=false", "Apex is a PyTorch extension; use fp16 or bf16");
  k.details("amp.enabled", "arguments of Apex", "<kwargs>:a=null");
  k.list.back().path = "amp.<kwargs>";
  k.section("torch_autocast", "mixed precision by PyTorch");
  k.refused("enabled", "b=false", "all layers of a model have one type; use fp16 or bf16");
  k.details("torch_autocast.enabled", "autocast",
            "lower_precision_safe_modules:l?=null "
            "dtype:s(bfloat16|bf16|torch.bfloat16|float16|fp16|torch.float16|half)=null");
  k.section("quantize_training", "quantization during training");
  k.list.back().status = Status::refused, k.list.back().off = {"{}"}, k.list.back().default_text = "null";
  k.list.back().meaning = "no quantization during training";
  const char* eigenvalues = "eigenvalues for the quantization schedule";
  constexpr const char* kEigenvalues =
      "verbose:b=false max_iter:i=100 tol:n=0.01 stability:n=1e-06 gas_boundary_resolution:i=1 "
      "layer_name:s=\"bert.encoder.layer\" layer_num:i=0";
  k.section("quantize_training.eigenvalue", eigenvalues);
  k.details("quantize_training", eigenvalues, "enabled:b=false");
  k.details("quantize_training", eigenvalues, kEigenvalues);
  k.section("eigenvalue", eigenvalues);
  k.refused("enabled", "b=false", "part of quantization during training, which is not supported");
  k.details("eigenvalue.enabled", eigenvalues, kEigenvalues);
}

void unbuilt_parallelism(Keys& k) {
  k.section("expert_parallel", "expert parallelism");
  k.refused("enabled", "b=false", "no mixture-of-experts models");
  k.details(
      "expert_parallel.enabled", "mixture-of-experts models",
      "autoep_size:i=1 expert_tensor_parallel_size:i=1 validate_folding_routing:b=false "
      "preset_model:s(mixtral|qwen3_moe|qwen3_5_moe|deepseek_v2|deepseek_v3|minimax_m3)=null "
      "moe_layer_pattern:s?=null "
      "expert_pattern:s?=null router_pattern:s?=null use_grouped_mm:b=true disable_triton_grouped_mm:b=false "
      "route_norm:b?=null route_scale:n=1.0 score_apply:s(auto|pre|post)=\"auto\" "
      "combine_impl:s(auto|weighted_sum|legacy_bmm|fused_weighted_sum)=\"auto\" num_expert_groups:i?=null "
      "num_limited_groups:i?=null "
      "score_func:s(auto|softmax|sigmoid)=\"auto\" top_k:a=\"auto\" load_balance_coeff:n?=null "
      "routed_scaling_factor:a=\"auto\" expert_w1:s?=null expert_w2:s?=null expert_w3:s?=null "
      "num_experts_attr:s?=null top_k_attr:s?=null has_shared_experts:b?=null shared_experts_pattern:s?=null "
      "shared_experts_gate_pattern:s?=null async_split_plan:b=false "
      "row_weighting_impl:s(auto|eager|fused)=\"auto\" gate_up_impl:s(separate|fused)=\"separate\" "
      "comm_backend:s(comm|deepep)=\"comm\" comm_num_sm:i=12 comm_qp_margin:i=4 comm_max_tokens_per_rank:i=0 "
      "expert_activation:s?=null");
}

void unbuilt_curricula(Keys& k) {
  constexpr const char* kCurriculum =
      "min_difficulty:i?=null max_difficulty:i?=null schedule_config:o?=null "
      "schedule_type:s(fixed_linear|fixed_root|fixed_discrete|custom)=null "
      "schedule_config.total_curriculum_step:i?=null "
      "schedule_config.difficulty_step:i?=null schedule_config.root_degree:i?=null "
      "schedule_config.difficulty:l?=null "
      "schedule_config.max_step:l?=null";
  k.section("curriculum_learning", "short sequences first (curriculum)");
  k.refused("enabled", "b=false", "sequences have one length");
  k.details("curriculum_learning.enabled", "short sequences first (curriculum)", "curriculum_type:s?=null");
  k.details("curriculum_learning.enabled", "short sequences first (curriculum)", kCurriculum);
  k.section("data_efficiency", "data selection and truncation");
  k.refused("enabled", "b=false", "every sample is used as it is");
  const std::string with = "data_efficiency.enabled", what = "data selection and truncation";
  k.details(with, what, "seed:i=1234 data_sampling:o={} data_routing:o={}");
  k.section("data_efficiency.data_sampling", "");
  k.details(
      with, what,
      "enabled:b=false num_epochs:i=1000 num_workers:i=0 pin_memory:b=false curriculum_learning:o={} "
      "curriculum_learning.enabled:b=false curriculum_learning.data_cluster_path:s?=null "
      "curriculum_learning.curriculum_metrics:o?=null dynamic_batching:o={} dynamic_batching.enabled:b=false "
      "dynamic_batching.metrics_path:s?=null dynamic_batching.max_tokens:i?=null "
      "dynamic_batching.lr_scaling_method:s(linear|sqrt|none)=\"linear\" dynamic_batching.min_batch_size:i=1 "
      "dynamic_batching.max_batch_size:i?=null dynamic_batching.verbose:b=false "
      "dynamic_batching.sequence_picking_order:s(random|seqlen|dataloader)=\"dataloader\"");
  k.section("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.<metric>",
            "one measure of difficulty");
  k.details(with, what,
            "index_to_sample_path:s?=null index_to_metric_path:s?=null "
            "difficulty_type:s(value|percentile)=null clustering_type:s(schedule_based|single_cluster)=null");
  k.details(with, what, kCurriculum);
  k.section("data_efficiency.data_routing", "");
  k.details(with, what, "enabled:b=false random_ltd:o={}");
  k.section("data_efficiency.data_routing.random_ltd", "");
  k.details(
      with, what,
      "enabled:b=false total_layer_num:i?=null random_ltd_layer_num:i?=null random_ltd_layer_id:l?=null "
      "model_mask_name:s?=null model_type:s(decoder|encoder)=null "
      "hidden_state_order:s(batch_seq_dim|seq_batch_dim)=null micro_batch_size:i?=null "
      "global_batch_size:i?=null "
      "random_ltd_schedule:o?=null random_ltd_schedule.min_value:i?=null "
      "random_ltd_schedule.max_value:i?=null "
      "random_ltd_schedule.schedule_type:s(fixed_linear)=null "
      "random_ltd_schedule.schedule_config.require_steps:i?=null "
      "random_ltd_schedule.schedule_config.seq_per_step:i?=null "
      "layer_token_lr_schedule:o={\"enabled\":false} "
      "layer_token_lr_schedule.enabled:b=false layer_token_lr_schedule.total_layer_tokens:i?=null "
      "layer_token_lr_schedule.warmup_type:s(linear)=null "
      "layer_token_lr_schedule.warmup_layer_tokens:i?=null");
  k.section("progressive_layer_drop", "random layer dropping");
  k.refused("enabled", "b=false", "every layer runs in every step");
  k.details("progressive_layer_drop.enabled", "random layer dropping", "theta:n=1.0 gamma:n=0.001");
}

}  // namespace

void describe_unbuilt_training(Keys& keys) {
  unbuilt_top_level(keys);
  unbuilt_precision(keys);
  unbuilt_parallelism(keys);
  unbuilt_curricula(keys);
}

}  // namespace cleave::config
