#include "app/other_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace cleave::app {
namespace {

// A command suggests the first of the options `use` that it has. Otherwise it prints `says` if it has a
// ds_config.
struct Suggestion {
  std::string_view name, use, says = {};
};

constexpr std::string_view kStartRanks = "start N ranks with cleave launch -n N -- train ...";
constexpr std::string_view kHosts =
    "start ranks on several hosts with cleave launch -H HOSTFILE -- train ...";
constexpr std::string_view kModel = "--model takes the name of a preset, a config.json or a model folder";
constexpr std::string_view kTokenizer = "--tokenizer takes a tokenizer.json";
constexpr std::string_view kTensor = "set tensor_parallel.autotp_size in the ds_config";
constexpr std::string_view kPipeline = "set pipeline.stages in the ds_config";
constexpr std::string_view kVirtual = "set pipeline.virtual_stages in the ds_config";
constexpr std::string_view kSequence = "set sequence_parallel_size in the ds_config";
constexpr std::string_view kExperts = "no mixture-of-experts models; leave it out";
constexpr std::string_view kGlobalBatch = "set train_batch_size in the ds_config";
constexpr std::string_view kMicroBatch = "set train_micro_batch_size_per_gpu in the ds_config";
constexpr std::string_view kStage = "set zero_optimization.stage in the ds_config";
constexpr std::string_view kStage1 = "set zero_optimization.stage 1 in the ds_config";
constexpr std::string_view kStage3 = "set zero_optimization.stage 3 in the ds_config";
constexpr std::string_view kOffload =
    "set zero_optimization.offload_optimizer.device in the ds_config, and at stage 3 also "
    "zero_optimization.offload_param.device";
constexpr std::string_view kOffloadOptimizer =
    "set zero_optimization.offload_optimizer.device in the ds_config";
constexpr std::string_view kOffloadParam = "set zero_optimization.offload_param.device in the ds_config";
constexpr std::string_view kType = "use --bf16 or --fp16";
constexpr std::string_view kSetInterval = "set activation_checkpointing.interval in the ds_config";
constexpr std::string_view kOptimizer = "set optimizer.type in the ds_config";
constexpr std::string_view kLowestRate = "set scheduler.params in the ds_config";
constexpr std::string_view kScale = "set the fp16 section of the ds_config";
constexpr std::string_view kLora = "set cleave.lora in the ds_config";
constexpr std::string_view kSeeMetrics =
    "set steps_per_print in the ds_config; cleave train --metrics writes every step";
constexpr std::string_view kMonitor = "set cleave.mlflow, tensorboard or csv_monitor in the ds_config";
constexpr std::string_view kBuiltIn = "nothing is compiled at run time; leave it out";

constexpr Suggestion kSuggestions[] = {
    {"accumulate_grad_batches", "--gradient_accumulation_steps"},
    {"adam_eps", "--adam_epsilon"},
    {"attention_dropout", "", kModel},
    {"batch_size", "--per_device_train_batch_size", kMicroBatch},
    {"checkpoint_activations", "", kSetInterval},
    {"checkpoint_dir", "--output"},
    {"clip_grad", "--max_grad_norm"},
    {"clip_grad_norm", "--max_grad_norm"},
    {"compile", "", kBuiltIn},
    {"config", "--deepspeed_config"},
    {"config_file", "--deepspeed_config"},
    {"context_length", "--seq_len"},
    {"context_parallel_size", "", kSequence},
    {"cpu_offload", "", kOffload},
    {"dataset", "--data"},
    {"data_dir", "--data"},
    {"data_path", "--data"},
    {"decoder_seq_length", "--seq_len"},
    {"deepspeed_config_file", "--deepspeed_config"},
    {"deepspeed_hostfile", "--hostfile", kHosts},
    {"distributed_backend", "--transport"},
    {"ds_config", "--deepspeed_config"},
    {"dtype", "", kType},
    {"dynamo_backend", "", kBuiltIn},
    {"eval_every", "--eval_interval"},
    {"eval_freq", "--eval_interval"},
    {"eval_iters", "", "evaluation always covers all of --eval_data; leave it out"},
    {"expert_model_parallel_size", "", kExperts},
    {"ffn_hidden_size", "", kModel},
    {"global_batch_size", "", kGlobalBatch},
    {"gpus", "--num_gpus --world_size", kStartRanks},
    {"grad_accum_steps", "--gradient_accumulation_steps"},
    {"grad_clip", "--max_grad_norm"},
    {"gradient_clipping", "--max_grad_norm"},
    {"hidden_dropout", "", kModel},
    {"hidden_size", "", kModel},
    {"hostfile", "", kHosts},
    {"initial_loss_scale", "", kScale},
    {"init_from", "", kModel},
    {"iters", "--steps"},
    {"learning_rate_schedule", "--lr_scheduler_type"},
    {"load", "", "--output names the folder to resume from, --model a folder to start from"},
    {"log_interval", "", kSeeMetrics},
    {"lora_alpha", "", kLora},
    {"lora_r", "", kLora},
    {"lora_rank", "", kLora},
    {"loss_scale", "", kScale},
    {"lr", "--learning_rate"},
    {"lr_decay_iters", "", kLowestRate},
    {"lr_decay_style", "--lr_scheduler_type"},
    {"lr_scheduler", "--lr_scheduler_type"},
    {"lr_warmup_fraction", "--warmup_ratio"},
    {"lr_warmup_iters", "--warmup_steps"},
    {"machine_rank", "--node_rank", kHosts},
    {"main_process_ip", "--master_addr", kHosts},
    {"main_process_port", "--master_port", kHosts},
    {"master_addr", "", kHosts},
    {"master_port", "", kHosts},
    {"max_epochs", "--epochs"},
    {"max_iters", "--steps"},
    {"max_length", "--seq_len"},
    {"max_position_embeddings", "", kModel},
    {"merge_file", "", kTokenizer},
    {"micro_batch_size", "--per_device_train_batch_size", kMicroBatch},
    {"min_lr", "", kLowestRate},
    {"mixed_precision", "", kType},
    {"model_parallel_size", "", kTensor},
    {"multi_gpu", "", kStartRanks},
    {"n_gpus", "--num_gpus --world_size", kStartRanks},
    {"nnodes", "--num_nodes", kHosts},
    {"node_rank", "", kHosts},
    {"nproc", "--world_size", kStartRanks},
    {"nproc_per_node", "--nproc --world_size", kStartRanks},
    {"num_attention_heads", "", kModel},
    {"num_epochs", "--epochs"},
    {"num_gpus", "--world_size", kStartRanks},
    {"num_iters", "--steps"},
    {"num_iterations", "--steps"},
    {"num_layers", "", kModel},
    {"num_layers_per_virtual_pipeline_stage", "", kVirtual},
    {"num_machines", "--num_nodes", kHosts},
    {"num_nodes", "", kHosts},
    {"num_processes", "--nproc --world_size", kStartRanks},
    {"num_steps", "--steps"},
    {"num_warmup_steps", "--warmup_steps"},
    {"offload", "", kOffload},
    {"offload_optimizer_device", "", kOffloadOptimizer},
    {"offload_param_device", "", kOffloadParam},
    {"optimizer", "", kOptimizer},
    {"out_dir", "--output"},
    {"pipeline_model_parallel_size", "", kPipeline},
    {"pipeline_parallel_size", "", kPipeline},
    {"precision", "", kType},
    {"recompute_activations", "", kSetInterval},
    {"recompute_granularity", "", kSetInterval},
    {"save", "--output"},
    {"save_dir", "--output"},
    {"save_every", "--save_interval"},
    {"seq_length", "--seq_len"},
    {"sequence_length", "--seq_len"},
    {"sequence_parallel", "", "set tensor_parallel.sequence_parallel in the ds_config"},
    {"sequence_parallel_size", "", kSequence},
    {"tensor_model_parallel_size", "", kTensor},
    {"tensor_parallel_size", "", kTensor},
    {"tensorboard_dir", "", kMonitor},
    {"tokenizer_model", "--tokenizer"},
    {"tokenizer_path", "--tokenizer"},
    {"tokenizer_type", "", kTokenizer},
    {"total_steps", "--steps"},
    {"tp_size", "", kTensor},
    {"train_batch_size", "", kGlobalBatch},
    {"train_data", "--data"},
    {"train_data_path", "--data"},
    {"train_iters", "--steps"},
    {"train_micro_batch_size_per_gpu", "--per_device_train_batch_size", kMicroBatch},
    {"train_samples", "--epochs"},
    {"training_steps", "--steps"},
    {"use_deepspeed", "", "Cleave always reads a ds_config; leave it out"},
    {"use_distributed_optimizer", "", kStage1},
    {"use_fsdp", "", kStage3},
    {"use_lora", "", kLora},
    {"val_data", "--eval_data"},
    {"valid_data_path", "--eval_data"},
    {"virtual_pipeline_model_parallel_size", "", kVirtual},
    {"vocab_file", "", kTokenizer},
    {"wandb_project", "", kMonitor},
    {"warmup", "--warmup_steps"},
    {"warmup_iters", "--warmup_steps"},
    {"world_size", "--nproc", kStartRanks},
    {"zero_stage", "", kStage},
};

bool has(const std::vector<std::string>& known, std::string_view option) {
  return std::find(known.begin(), known.end(), option) != known.end();
}

}  // namespace

std::string equivalent_of(std::string_view option, const std::vector<std::string>& known) {
  const auto row = std::find_if(std::begin(kSuggestions), std::end(kSuggestions), [&](const Suggestion& r) {
    return option.starts_with("--") && r.name == option.substr(2);
  });
  if (row == std::end(kSuggestions)) return "";
  for (size_t begin = 0; begin < row->use.size();) {
    const size_t end = std::min(row->use.find(' ', begin), row->use.size());
    const std::string_view use = row->use.substr(begin, end - begin);
    if (has(known, use)) return fmt::format("; use {}", use);
    begin = end + 1;
  }
  return row->says.empty() || !has(known, "--deepspeed_config") ? "" : fmt::format("; {}", row->says);
}

}  // namespace cleave::app
