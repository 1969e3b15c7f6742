#include "config_schema/meant_keys.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "config_schema/key_values.h"
#include "config_schema/nearest_key.h"

namespace cleave::config {
namespace {

using Kind = JsonValue::Kind;
using enum Meant::When;

constexpr std::string_view kNoScale = "bf16 has the range of fp32 and needs no loss scale; remove it";
constexpr std::string_view kBatch =
    "use train_batch_size (samples per step over all ranks) and train_micro_batch_size_per_gpu (samples per "
    "rank and pass)";
constexpr std::string_view kLength = "the command line sets the length of a training: --steps or --epochs";
constexpr std::string_view kOldThreads =
    "an old name of intra_op_parallelism that neither DeepSpeed nor Cleave reads";
constexpr std::string_view kType =
    R"(bf16.enabled and fp16.enabled choose the model's type; write {"bf16": {"enabled": true}}, or fp16)";
constexpr std::string_view kApex = "an Apex argument that neither DeepSpeed nor Cleave reads; remove it";
constexpr std::string_view kFsdp =
    R"(ZeRO stage 3 does the same; write {"zero_optimization": {"stage": 3}}; for CPU offload set )"
    R"(zero_optimization.offload_param.device and zero_optimization.offload_optimizer.device to "cpu")";
constexpr std::string_view kDistributed =
    "Cleave always trains with a ds_config; FSDP is zero_optimization.stage 3, and Megatron-LM is "
    "tensor_parallel.autotp_size and pipeline.stages; remove it";
constexpr std::string_view kRanks = "the launcher sets the number of ranks: cleave launch -n N";
constexpr std::string_view kSharding =
    "FULL_SHARD is zero_optimization.stage 3, SHARD_GRAD_OP stage 2, HYBRID_SHARD stage 3 with "
    "zero_optimization.mics_shard_size";
constexpr std::string_view kStage1 =
    R"(ZeRO stage 1 does the same; write {"zero_optimization": {"stage": 1}})";
constexpr std::string_view kSequence =
    "Megatron's cut of norms and dropout over the tensor ranks is automatic with "
    "tensor_parallel.autotp_size; "
    R"(DeepSpeed-Ulysses is {"sequence_parallel_size": N})";
constexpr std::string_view kContext =
    R"(ring attention is not supported; write {"sequence_parallel_size": N} to split every sequence over N ranks)";
constexpr std::string_view kData = "the remaining ranks are data parallel; remove it";
constexpr std::string_view kExperts = "no mixture-of-experts models; remove it";
constexpr std::string_view kSchedule =
    R"(write {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}} for linear, )"
    R"("WarmupCosineLR" for cosine, "WarmupLR" without total_num_steps for a constant rate after the warm-up)";
constexpr std::string_view kOptimizer =
    R"(write {"optimizer": {"type": "AdamW"}} for adamw_torch and its variants, or another optimizer.type)";
constexpr std::string_view kShare =
    "scheduler.params.warmup_num_steps is a number of steps; set it, or pass --warmup_ratio with "
    R"("warmup_num_steps": "auto")";
constexpr std::string_view kAxes =
    "the keys are tensor_parallel.autotp_size, pipeline.stages and sequence_parallel_size; the remaining "
    "ranks "
    "are data parallel";
constexpr std::string_view kOffload =
    "the sections are zero_optimization.offload_optimizer and zero_optimization.offload_param";
constexpr std::string_view kBetas = R"(write "betas": [0.9, 0.999])";
constexpr std::string_view kDevice = R"(write "device": "cpu", "nvme" or "none")";

constexpr Meant kMeant[] = {
    {"", "accumulate_grad_batches", "gradient_accumulation_steps"},
    {"", "accumulation_steps", "gradient_accumulation_steps"},
    {"", "activation_recompute", "activation_checkpointing.interval", {}, asking},
    {"", "adam_beta1", "optimizer.params.betas"},
    {"", "adam_beta2", "optimizer.params.betas"},
    {"", "adam_epsilon", "optimizer.params.eps"},
    {"", "batch_size", "", kBatch},
    {"", "bf16_enabled", "bf16.enabled"},
    {"", "bf16_mixed", "bf16.enabled", {}, asking},
    {"", "bfloat16_enabled", "bf16.enabled", {}, asking},
    {"", "checkpoint_activations", "activation_checkpointing.interval", {}, asking},
    {"", "clip_grad", "gradient_clipping"},
    {"", "clip_grad_norm", "gradient_clipping"},
    {"", "clip_gradients", "gradient_clipping"},
    {"", "clip_norm", "gradient_clipping"},
    {"", "compute_dtype", "", kType, asking},
    {"", "context_parallel", "", kContext, above_one},
    {"", "context_parallel_degree", "", kContext, above_one},
    {"", "context_parallel_size", "", kContext, above_one},
    {"", "cp", "", kContext, above_one},
    {"", "cp_size", "", kContext, above_one},
    {"", "cpu_offload", "", kOffload, asking},
    {"", "data_parallel", "", kData, above_one},
    {"", "device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "distributed_type", "", kDistributed, asking},
    {"", "dp_degree", "", kData, above_one},
    {"", "dp_size", "", kData, above_one},
    {"", "dtype", "", kType, asking},
    {"", "effective_batch_size", "train_batch_size"},
    {"", "ep_size", "", kExperts, above_one},
    {"", "epochs", "", kLength, warning},
    {"", "expert_model_parallel_size", "", kExperts, above_one},
    {"", "expert_parallel_size", "", kExperts, above_one},
    {"", "float16", "fp16"},
    {"", "fp16_enabled", "fp16.enabled"},
    {"", "fp8", "cleave.fp8"},
    {"", "fsdp", "", kFsdp, above_one},
    {"", "fsdp2", "", kFsdp, above_one},
    {"", "fsdp_config", "", kFsdp, above_one},
    {"", "fsdp_size", "", kFsdp, above_one},
    {"", "fully_sharded_data_parallel", "", kFsdp, above_one},
    {"", "gas", "gradient_accumulation_steps"},
    {"", "global_batch_size", "train_batch_size"},
    {"", "global_train_batch_size", "train_batch_size"},
    {"", "grad_accum_steps", "gradient_accumulation_steps"},
    {"", "grad_accumulation_steps", "gradient_accumulation_steps"},
    {"", "grad_clip", "gradient_clipping"},
    {"", "grad_clip_norm", "gradient_clipping"},
    {"", "grad_clipping", "gradient_clipping"},
    {"", "gradient_checkpointing", "activation_checkpointing.interval"},
    {"", "gradient_clip", "gradient_clipping"},
    {"", "gradient_clip_norm", "gradient_clipping"},
    {"", "gradient_clip_val", "gradient_clipping"},
    {"", "gradient_clipping_norm", "gradient_clipping"},
    {"", "half", "fp16.enabled", {}, asking},
    {"", "half_precision", "fp16.enabled", {}, asking},
    {"", "learning_rate", "optimizer.params.lr"},
    {"", "lr_decay_iters", "scheduler.params.total_num_steps", {}, asking},
    {"", "lr_decay_steps", "scheduler.params.total_num_steps", {}, asking},
    {"", "lr_decay_style", "", kSchedule, asking},
    {"", "lr_schedule", "", kSchedule, asking},
    {"", "lr_scheduler", "", kSchedule, asking},
    {"", "lr_scheduler_type", "", kSchedule, asking},
    {"", "lr_warmup_fraction", "", kShare, asking},
    {"", "lr_warmup_iters", "scheduler.params.warmup_num_steps", {}, asking},
    {"", "lr_warmup_steps", "scheduler.params.warmup_num_steps", {}, asking},
    {"", "max_grad_norm", "gradient_clipping"},
    {"", "max_norm", "gradient_clipping"},
    {"", "max_steps", "", kLength, warning},
    {"", "micro_batch", "train_micro_batch_size_per_gpu"},
    {"", "micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "micro_batch_size_per_device", "train_micro_batch_size_per_gpu"},
    {"", "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu"},
    {"", "mixed_precision", "", kType, asking},
    {"", "model_dtype", "", kType, asking},
    {"", "model_parallel_size", "tensor_parallel.autotp_size", {}, above_one},
    {"", "mp_size", "tensor_parallel.autotp_size", {}, above_one},
    {"", "num_epochs", "", kLength, warning},
    {"", "num_experts", "", kExperts, above_one},
    {"", "num_gpus", "", kRanks, warning},
    {"", "num_machines", "", kRanks, warning},
    {"", "num_pipeline_stages", "pipeline.stages", {}, above_one},
    {"", "num_processes", "", kRanks, warning},
    {"", "num_train_epochs", "", kLength, warning},
    {"", "num_warmup_steps", "scheduler.params.warmup_num_steps", {}, asking},
    {"", "offload", "", kOffload},
    {"", "offload_optimizer_device", "zero_optimization.offload_optimizer.device", {}, asking},
    {"", "offload_param_device", "zero_optimization.offload_param.device", {}, asking},
    {"", "optim", "", kOptimizer, asking},
    {"", "optimizer_offload", "", kOffload, asking},
    {"", "parallel", "", kAxes, above_one},
    {"", "parallel_config", "", kAxes, above_one},
    {"", "parallelism", "", kAxes, above_one},
    {"", "param_dtype", "", kType, asking},
    {"", "param_offload", "", kOffload, asking},
    {"", "params_dtype", "", kType, asking},
    {"", "per_device_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "pipe_parallel_size", "pipeline.stages", {}, above_one},
    {"", "pipeline_model_parallel_size", "pipeline.stages", {}, above_one},
    {"", "pipeline_parallel", "pipeline.stages", {}, above_one},
    {"", "pipeline_parallel_degree", "pipeline.stages", {}, above_one},
    {"", "pipeline_parallel_size", "pipeline.stages", {}, above_one},
    {"", "pipeline_parallel_stages", "pipeline.stages", {}, above_one},
    {"", "pipeline_stages", "pipeline.stages", {}, above_one},
    {"", "pp", "pipeline.stages", {}, above_one},
    {"", "pp_degree", "pipeline.stages", {}, above_one},
    {"", "pp_size", "pipeline.stages", {}, above_one},
    {"", "precision", "", kType, asking},
    {"", "recompute", "activation_checkpointing.interval", {}, asking},
    {"", "recompute_granularity", "activation_checkpointing.interval", {}, asking},
    {"", "recompute_method", "activation_checkpointing.interval", {}, asking},
    {"", "recompute_num_layers", "activation_checkpointing.interval", {}, asking},
    {"", "sequence_parallel", "", kSequence, above_one},
    {"", "sharding_strategy", "", kSharding, asking},
    {"", "sp_size", "sequence_parallel_size", {}, above_one},
    {"", "tensor_model_parallel_size", "tensor_parallel.autotp_size", {}, above_one},
    {"", "tensor_parallel_degree", "tensor_parallel.autotp_size", {}, above_one},
    {"", "tensor_parallel_size", "tensor_parallel.autotp_size", {}, above_one},
    {"", "torch_dtype", "", kType, asking},
    {"", "total_batch_size", "train_batch_size"},
    {"", "total_steps", "", kLength, warning},
    {"", "tp", "tensor_parallel.autotp_size", {}, above_one},
    {"", "tp_degree", "tensor_parallel.autotp_size", {}, above_one},
    {"", "tp_size", "tensor_parallel.autotp_size", {}, above_one},
    {"", "train_iters", "", kLength, warning},
    {"", "train_micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "ulysses_sequence_parallel_size", "sequence_parallel_size", {}, above_one},
    {"", "ulysses_size", "sequence_parallel_size", {}, above_one},
    {"", "use_bf16", "bf16.enabled", {}, asking},
    {"", "use_distributed_optimizer", "", kStage1, asking},
    {"", "use_fp16", "fp16.enabled", {}, asking},
    {"", "use_gradient_checkpointing", "activation_checkpointing.interval", {}, asking},
    {"", "use_half", "fp16.enabled", {}, asking},
    {"", "warmup_fraction", "", kShare, asking},
    {"", "warmup_iters", "scheduler.params.warmup_num_steps", {}, asking},
    {"", "warmup_ratio", "", kShare, asking},
    {"", "warmup_steps", "scheduler.params.warmup_num_steps", {}, asking},
    {"", "weight_decay", "optimizer.params.weight_decay"},
    {"", "weights_dtype", "", kType, asking},
    {"", "zero", "zero_optimization.stage", {}, asking},
    {"", "zero2", "zero_optimization.stage", {}, asking},
    {"", "zero3", "zero_optimization.stage", {}, asking},
    {"", "zero3_save_16bit_model", "zero_optimization.stage3_gather_16bit_weights_on_model_save", {}, asking},
    {"", "zero_allow_untrained", "zero_allow_untested_optimizer"},
    {"", "zero_stage", "zero_optimization.stage"},
    {"activation_checkpointing", "enabled", "",
     "unknown key; set \"interval\": 1 to recompute every layer, 0 to recompute none"},
    {"aio", "num_threads", "", kOldThreads, warning},
    {"aio", "thread_count", "", kOldThreads, warning},
    {"bf16", "auto_cast", "", kNoScale},
    {"bf16", "bf16", "bf16.enabled"},
    {"bf16", "consecutive_hysteresis", "", kNoScale},
    {"bf16", "dtype", "", kType},
    {"bf16", "hysteresis", "", kNoScale},
    {"bf16", "initial_scale_power", "", kNoScale},
    {"bf16", "loss_scale", "", kNoScale},
    {"bf16", "loss_scale_window", "", kNoScale},
    {"bf16", "min_loss_scale", "", kNoScale},
    {"bf16", "opt_level", "", kApex},
    {"bf16", "type", "", kType},
    {"cleave.lora", "lora_alpha", "cleave.lora.alpha"},
    {"cleave.lora", "lora_dropout", "cleave.lora.dropout"},
    {"cleave.lora", "r", "cleave.lora.rank"},
    {"cleave.lora", "target_modules", "cleave.lora.targets"},
    {"fp16", "dtype", "", kType},
    {"fp16", "fp16", "fp16.enabled"},
    {"fp16", "opt_level", "", kApex},
    {"fp16", "type", "", kType},
    {"optimizer", "name", "optimizer.type"},
    {"optimizer.params", "adam_beta1", "", kBetas},
    {"optimizer.params", "adam_beta2", "", kBetas},
    {"optimizer.params", "beta1", "", kBetas},
    {"optimizer.params", "beta2", "", kBetas},
    {"optimizer.params", "epsilon", "optimizer.params.eps"},
    {"optimizer.params", "learning_rate", "optimizer.params.lr"},
    {"optimizer.params", "warmup_steps", "scheduler.params.warmup_num_steps"},
    {"optimizer.params", "wd", "optimizer.params.weight_decay"},
    {"pipeline", "micro_batches", "gradient_accumulation_steps"},
    {"pipeline", "num_microbatches", "gradient_accumulation_steps"},
    {"pipeline", "num_stages", "pipeline.stages"},
    {"pipeline", "pipe_parallel_size", "pipeline.stages"},
    {"pipeline", "pipeline_parallel_size", "pipeline.stages"},
    {"pipeline", "pp_size", "pipeline.stages"},
    {"scheduler", "name", "scheduler.type"},
    {"scheduler.params", "lr", "scheduler.params.warmup_max_lr"},
    {"scheduler.params", "max_lr", "scheduler.params.warmup_max_lr"},
    {"scheduler.params", "max_steps", "scheduler.params.total_num_steps"},
    {"scheduler.params", "min_lr", "scheduler.params.warmup_min_lr"},
    {"scheduler.params", "num_training_steps", "scheduler.params.total_num_steps"},
    {"scheduler.params", "num_warmup_steps", "scheduler.params.warmup_num_steps"},
    {"scheduler.params", "total_steps", "scheduler.params.total_num_steps"},
    {"scheduler.params", "warmup_ratio", "", kShare},
    {"scheduler.params", "warmup_steps", "scheduler.params.warmup_num_steps"},
    {"tensor_parallel", "enabled", "",
     "unknown key; set autotp_size above 1 to split layers, and remove this key"},
    {"tensor_parallel", "size", "tensor_parallel.autotp_size"},
    {"tensor_parallel", "tensor_parallel_size", "tensor_parallel.autotp_size"},
    {"tensor_parallel", "tp_size", "tensor_parallel.autotp_size"},
    {"zero_optimization", "enabled", "",
     "unknown key; set \"stage\": 0 to turn ZeRO off, and remove this key"},
    {"zero_optimization", "offload", "", "the sections are offload_optimizer and offload_param"},
    {"zero_optimization", "offload_optim", "zero_optimization.offload_optimizer"},
    {"zero_optimization", "offload_optimizer_device", "zero_optimization.offload_optimizer.device"},
    {"zero_optimization", "offload_param_device", "zero_optimization.offload_param.device"},
    {"zero_optimization", "offload_parameters", "zero_optimization.offload_param"},
    {"zero_optimization", "offload_params", "zero_optimization.offload_param"},
    {"zero_optimization", "param_offload", "zero_optimization.offload_param"},
    {"zero_optimization", "zero_stage", "zero_optimization.stage"},
    {"zero_optimization.offload_optimizer", "enabled", "", kDevice},
    {"zero_optimization.offload_optimizer", "path", "zero_optimization.offload_optimizer.nvme_path"},
    {"zero_optimization.offload_param", "enabled", "", kDevice},
    {"zero_optimization.offload_param", "path", "zero_optimization.offload_param.nvme_path"},
};

bool is_one_of(std::initializer_list<std::string_view> words, const std::string& word) {
  return std::find(words.begin(), words.end(), lower(word)) != words.end();
}

}  // namespace

const Meant* meant_by(std::string_view section, std::string_view name) {
  constexpr size_t kLongest = 60;
  if (name.size() > kLongest) return nullptr;
  std::string plain = lower(std::string(name));
  std::replace(plain.begin(), plain.end(), '-', '_');
  const auto row = std::find_if(std::begin(kMeant), std::end(kMeant),
                                [&](const Meant& m) { return m.section == section && m.name == plain; });
  return row == std::end(kMeant) ? nullptr : &*row;
}

const Meant* nearly_meant_by(std::string_view section, std::string_view name) {
  constexpr size_t kShortest = 8;  // shorter names of other programs are often similar by chance
  const auto row = std::find_if(std::begin(kMeant), std::end(kMeant), [&](const Meant& m) {
    return m.section == section && m.name.size() >= kShortest && edit_distance(m.name, name, 1) <= 1;
  });
  return row == std::end(kMeant) ? nullptr : &*row;
}

bool asks_for_nothing(const JsonValue& v) {
  switch (v.kind) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return !v.boolean;
    case Kind::number:
      return v.number == 0;
    case Kind::text:
      return v.text.empty() || is_one_of({"none", "no", "off", "false"}, v.text);
    case Kind::list:
      return v.items.empty();
    case Kind::object:
      return std::all_of(v.members.begin(), v.members.end(),
                         [](const JsonMember& m) { return m.key == "_"; }) ||
             std::any_of(v.members.begin(), v.members.end(),
                         [](const JsonMember& m) { return m.key == "enabled" && asks_for_nothing(m.value); });
  }
  return false;
}

bool asks_for_nothing(const Meant& row, const JsonValue& v) {
  if (row.when == always || row.when == warning) return false;
  if (row.says == kType && v.kind == Kind::text)
    return is_one_of({"", "no", "fp32", "float32", "torch.float32", "float"}, v.text);
  if (row.says == kDistributed && v.kind == Kind::text &&
      is_one_of({"deepspeed", "multi_gpu", "multi_cpu"}, v.text))
    return true;
  return asks_for_nothing(v) || (row.when == above_one && v.kind == Kind::number && v.number == 1);
}

}  // namespace cleave::config
