#include "app/commands/trainer_names.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "core/error.h"
#include "core/secrets.h"

namespace cleave::app {
namespace {

enum class Kind : uint8_t {
  same,     // another name of the option `says`
  nothing,  // accepted: `says` why it has no effect
  refused,  // error unless disabled: `says` what to use
};

struct Row {
  std::string_view name;
  Kind kind;
  std::string_view says;
  std::string_view harmless = {};  // refused: other accepted values without effect, separated by blanks
};

constexpr std::string_view kLog =
    "--metrics has the loss of every step, and steps_per_print of the ds_config prints it";
constexpr std::string_view kLoader = "a background thread reads data ahead of the step";
constexpr std::string_view kRanks = "the ds_config decides the sum of gradients";
constexpr std::string_view kHub = "Cleave uploads nothing to a hub; --export writes a folder to upload";
constexpr std::string_view kCompile = "nothing is compiled at run time; the kernels are built in";
constexpr std::string_view kMemory = "cleave plan computes memory, and --metrics has the measured memory";
constexpr std::string_view kEval = "evaluation computes the mean loss and the accuracy over all targets";
constexpr std::string_view kTpu = "Cleave has no such backend; --device selects cpu or cuda";
constexpr std::string_view kOneTask = "samples are tokens, and the next token is the label";
constexpr std::string_view kShards =
    "set zero_optimization.stage 3 in the ds_config to shard parameters, gradients and state; for CPU "
    "offload "
    "set zero_optimization.offload_param.device and zero_optimization.offload_optimizer.device";

constexpr std::string_view kRecomputed =
    "set \"activation_checkpointing\": {\"interval\": 1} in the ds_config";
constexpr std::string_view kRecomputedHow = "set activation_checkpointing in the ds_config";

constexpr Row kRows[] = {
    {"accelerator_config", Kind::refused, "the ds_config decides the parallel layout"},
    {"activation_checkpointing", Kind::refused, kRecomputed},
    {"activation_checkpointing_kwargs", Kind::refused, kRecomputedHow},
    {"adafactor", Kind::refused, "set optimizer.type in the ds_config; Adafactor is not supported"},
    {"auto_find_batch_size", Kind::refused, "cleave plan --suggest finds a batch size and layout that fit"},
    {"average_tokens_across_devices", Kind::nothing, "set cleave.loss_average in the ds_config"},
    {"batch_eval_metrics", Kind::nothing, kEval},
    {"bf16_full_eval", Kind::refused,
     "evaluation uses the type of the training; set bf16.enabled in the ds_config"},
    {"block_size", Kind::same, "--seq_len"},
    {"cache_dir", Kind::nothing, "Cleave downloads nothing"},
    {"config_name", Kind::refused, "--model takes a config.json or its folder"},
    {"data_seed", Kind::refused, "--seed also sets the sample order"},
    {"dataloader_drop_last", Kind::refused, "set \"dataloader_drop_last\": true in the ds_config"},
    {"dataloader_in_order", Kind::nothing, kLoader},
    {"dataloader_multiprocessing_context", Kind::nothing, kLoader},
    {"dataloader_num_workers", Kind::nothing, kLoader},
    {"dataloader_persistent_workers", Kind::nothing, kLoader},
    {"dataloader_pin_memory", Kind::nothing, kLoader},
    {"dataloader_prefetch_factor", Kind::nothing, kLoader},
    {"dataset_config_name", Kind::refused,
     "Cleave downloads nothing; --data takes a text, a .jsonl or token files"},
    {"dataset_name", Kind::refused, "Cleave downloads nothing; --data takes a text, a .jsonl or token files"},
    {"ddp_backend", Kind::refused, "use --transport and --gpu_transport", "gloo nccl"},
    {"ddp_broadcast_buffers", Kind::nothing, kRanks},
    {"ddp_bucket_cap_mb", Kind::nothing, kRanks},
    {"ddp_find_unused_parameters", Kind::nothing, kRanks},
    {"ddp_static_graph", Kind::nothing, kRanks},
    {"ddp_timeout", Kind::refused, "set \"cleave\": {\"comm_timeout_s\": ...} in the ds_config"},
    {"debug", Kind::refused, "use --trace, or wall_clock_breakdown in the ds_config"},
    {"disable_tqdm", Kind::nothing, "the bar appears on terminals only"},
    {"do_eval", Kind::nothing, "use --eval_data"},
    {"do_predict", Kind::refused, "use cleave eval or cleave generate with a checkpoint"},
    {"do_train", Kind::nothing, "this command always trains"},
    {"enable_jit_checkpoint", Kind::nothing, "SIGTERM always saves and exits with code 75"},
    {"eval_accumulation_steps", Kind::nothing, kEval},
    {"eval_delay", Kind::refused, "the first evaluation is after --eval_interval steps"},
    {"eval_do_concat_batches", Kind::nothing, kEval},
    {"eval_on_start", Kind::refused, "use cleave eval with a checkpoint or a model folder"},
    {"eval_steps", Kind::same, "--eval_interval"},
    {"eval_strategy", Kind::refused,
     "use --eval_interval in steps; the first lines of a run show the steps per epoch", "steps"},
    {"eval_use_gather_object", Kind::nothing, kEval},
    {"evaluation_strategy", Kind::refused,
     "use --eval_interval in steps; the first lines of a run show the steps per epoch", "steps"},
    {"fp16_backend", Kind::nothing, "Cleave has one fp16 implementation"},
    {"fp16_full_eval", Kind::refused,
     "evaluation uses the type of the training; set fp16.enabled in the ds_config"},
    {"fp16_opt_level", Kind::nothing, "Cleave has one fp16 implementation"},
    {"fsdp", Kind::refused, kShards},
    {"fsdp_config", Kind::refused, kShards},
    {"fsdp_min_num_params", Kind::refused, kShards},
    {"fsdp_transformer_layer_cls_to_wrap", Kind::refused, kShards},
    {"full_determinism", Kind::nothing,
     "equal commands give equal bits; see cleave.deterministic of the ds_config"},
    {"gradient_checkpointing", Kind::refused, kRecomputed},
    {"gradient_checkpointing_kwargs", Kind::refused, kRecomputedHow},
    {"greater_is_better", Kind::refused, "the best checkpoint has the smallest validation loss"},
    {"group_by_length", Kind::refused, "--pack fills samples with whole documents"},
    {"half_precision_backend", Kind::nothing, "Cleave has one implementation per type"},
    {"hub_always_push", Kind::refused, kHub},
    {"hub_model_id", Kind::refused, kHub},
    {"hub_private_repo", Kind::refused, kHub},
    {"hub_revision", Kind::refused, kHub},
    {"hub_strategy", Kind::refused, kHub},
    {"hub_token", Kind::refused, kHub},
    {"ignore_data_skip", Kind::refused,
     "a resumed run continues with the next samples; --seed gives another order"},
    {"include_for_metrics", Kind::nothing, kEval},
    {"include_inputs_for_metrics", Kind::nothing, kEval},
    {"include_num_input_tokens_seen", Kind::nothing, "--metrics has the tokens of every step"},
    {"include_tokens_per_second", Kind::nothing, "--metrics has the tokens per second of every step"},
    {"jit_mode_eval", Kind::nothing, kCompile},
    {"label_names", Kind::nothing, kOneTask},
    {"label_smoothing_factor", Kind::refused, "label smoothing is not supported"},
    {"length_column_name", Kind::nothing, kOneTask},
    {"liger_kernel_config", Kind::nothing, "Cleave has its own kernels"},
    {"load_best_model_at_end", Kind::refused,
     "--keep_best keeps the checkpoint with the smallest validation loss"},
    {"log_level", Kind::nothing, "Cleave has no log levels"},
    {"log_level_replica", Kind::nothing, "Cleave has no log levels"},
    {"log_on_each_node", Kind::nothing, "the first rank prints for all ranks"},
    {"logging_dir", Kind::refused,
     "set \"tensorboard\": {\"enabled\": true, \"output_path\": ...} in the ds_config"},
    {"logging_first_step", Kind::nothing, kLog},
    {"logging_nan_inf_filter", Kind::nothing, "a loss that is not finite ends the training"},
    {"logging_steps", Kind::nothing, kLog},
    {"logging_strategy", Kind::nothing, kLog},
    {"low_cpu_mem_usage", Kind::nothing, "a rank reads only its own part"},
    {"lr_scheduler_kwargs", Kind::refused, "set scheduler.params in the ds_config"},
    {"max_eval_samples", Kind::refused,
     "cleave data split splits a text; evaluation always covers all of --eval_data"},
    {"max_seq_length", Kind::same, "--seq_len"},
    {"max_steps", Kind::same, "--steps"},
    {"max_train_samples", Kind::refused, "cleave data split splits a text"},
    {"metric_for_best_model", Kind::refused, "the best checkpoint has the smallest validation loss",
     "loss eval_loss"},
    {"model_max_length", Kind::same, "--seq_len"},
    {"model_name_or_path", Kind::same, "--model"},
    {"mp_parameters", Kind::refused, "set pipeline and tensor_parallel in the ds_config"},
    {"neftune_noise_alpha", Kind::refused, "noise on embeddings is not supported"},
    {"no_cuda", Kind::refused, "--device cpu"},
    {"num_train_epochs", Kind::same, "--epochs"},
    {"optim", Kind::refused, "set optimizer.type in the ds_config",
     "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused"},
    {"optim_args", Kind::refused, "set optimizer.params in the ds_config"},
    {"optim_target_modules", Kind::refused, "one optimizer trains all weights of a model"},
    {"output_dir", Kind::same, "--output"},
    {"overwrite_output_dir", Kind::refused,
     "--resume never restarts from scratch in a folder with checkpoints"},
    {"parallelism_config", Kind::refused, "set pipeline and tensor_parallel in the ds_config"},
    {"past_index", Kind::refused, "models do not carry memory from sample to sample", "-1"},
    {"per_device_eval_batch_size", Kind::nothing, "evaluation uses train_micro_batch_size_per_gpu"},
    {"per_gpu_eval_batch_size", Kind::nothing, "evaluation uses train_micro_batch_size_per_gpu"},
    {"per_gpu_train_batch_size", Kind::same, "--per_device_train_batch_size"},
    {"prediction_loss_only", Kind::nothing, kEval},
    {"project", Kind::nothing, "it names a place of Trackio; --report_to lists the services"},
    {"push_to_hub", Kind::refused, kHub},
    {"push_to_hub_model_id", Kind::refused, kHub},
    {"push_to_hub_organization", Kind::refused, kHub},
    {"push_to_hub_token", Kind::refused, kHub},
    {"ray_scope", Kind::nothing, "Cleave has no hyperparameter search"},
    {"remove_unused_columns", Kind::nothing, kOneTask},
    {"restore_callback_states_from_checkpoint", Kind::nothing, "Cleave has no callbacks"},
    {"resume_from_checkpoint", Kind::refused,
     "the same command resumes from the newest checkpoint in --output; --resume NAME selects another"},
    {"run_name", Kind::nothing, "cleave.mlflow.run_name of the ds_config names an MLflow run"},
    {"save_on_each_node", Kind::nothing, "every rank writes its part to --output"},
    {"save_only_model", Kind::refused, "--export writes only the weights, at the end"},
    {"save_safetensors", Kind::nothing, "checkpoints are safetensors files"},
    {"save_steps", Kind::same, "--save_interval"},
    {"save_strategy", Kind::refused, "use --save_interval in steps; --keep_best keeps the best checkpoint",
     "steps"},
    {"save_total_limit", Kind::same, "--keep"},
    {"skip_memory_metrics", Kind::nothing, kMemory},
    {"tf32", Kind::refused, "set \"cleave\": {\"tf32\": true} in the ds_config"},
    {"tokenizer_name", Kind::same, "--tokenizer"},
    {"torch_compile", Kind::nothing, kCompile},
    {"torch_compile_backend", Kind::nothing, kCompile},
    {"torch_compile_mode", Kind::nothing, kCompile},
    {"torch_dtype", Kind::refused, "set fp16.enabled or bf16.enabled in the ds_config", "auto float32"},
    {"torch_empty_cache_steps", Kind::nothing, kMemory},
    {"torchdynamo", Kind::nothing, kCompile},
    {"tpu_metrics_debug", Kind::refused, kTpu},
    {"tpu_num_cores", Kind::refused, kTpu},
    {"trackio_bucket_id", Kind::refused, kHub},
    {"trackio_space_id", Kind::refused, kHub},
    {"trackio_static_space_id", Kind::refused, kHub},
    {"train_file", Kind::same, "--data"},
    {"train_sampling_strategy", Kind::refused, "--seed decides the order of samples; --pack fills them",
     "random"},
    {"trust_remote_code", Kind::refused,
     "Cleave does not run code from model folders; docs/models.md lists the supported models"},
    {"use_cache", Kind::nothing, "training keeps no KV cache"},
    {"use_cpu", Kind::refused, "--device cpu"},
    {"use_fast_tokenizer", Kind::nothing, "Cleave has one implementation of tokenizers"},
    {"use_ipex", Kind::refused, kTpu},
    {"use_legacy_prediction_loop", Kind::nothing, kEval},
    {"use_liger_kernel", Kind::nothing, "Cleave has its own kernels"},
    {"use_mps_device", Kind::refused, kTpu},
    {"validation_file", Kind::same, "--eval_data"},
};

const Row* row_of(std::string_view name) {
  const auto at = std::lower_bound(std::begin(kRows), std::end(kRows), name,
                                   [](const Row& row, std::string_view wanted) { return row.name < wanted; });
  return at != std::end(kRows) && at->name == name ? &*at : nullptr;
}

bool among(std::string_view words, std::string_view word) {
  return (" " + std::string(words) + " ").find(" " + std::string(word) + " ") != std::string::npos;
}

// An option as typed: its name in this program's spelling, and its value if it has one.
struct Typed {
  std::string name, value;
  bool joined = false, separate = false;  // name=value; value is the next word
};

Typed typed_at(const Arguments& all, size_t i) {
  Typed t;
  const size_t equals = std::min(all[i].find('='), all[i].size());
  t.name = all[i].substr(2, equals - 2), t.joined = equals < all[i].size();
  std::replace(t.name.begin(), t.name.end(), '-', '_');
  t.separate = !t.joined && i + 1 < all.size() && !all[i + 1].starts_with("--");
  t.value = t.joined ? all[i].substr(equals + 1) : t.separate ? all[i + 1] : "true";
  return t;
}

void require_asks_for_nothing(const Row& row, const Typed& t) {
  std::string value = t.value;
  for (char& c : value)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  if (value.empty() || among("false no none 0 0.0", value) || among(row.harmless, value)) return;
  fail(Exit::usage, "--{} {}: unsupported Hugging Face Trainer option; {}", row.name,
       is_secret(row.name) ? "masked" : t.value, row.says);
}

}  // namespace

OwnArguments own_arguments(const Arguments& all) {
  OwnArguments own;
  bool by_steps = false;  // steps take precedence over epochs, as in the Trainer
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].starts_with("--"))
      if (const Typed t = typed_at(all, i); t.name == "max_steps") by_steps = t.value != "-1";
  for (size_t i = 0; i < all.size(); ++i) {
    const bool option = all[i].starts_with("--") && all[i].size() > 2;
    const Typed t = option ? typed_at(all, i) : Typed{};
    const Row* row = option ? row_of(t.name) : nullptr;
    // -1 means no limit on steps or on saved checkpoints.
    const bool none =
        row && (((row->name == "max_steps" || row->name == "save_total_limit") && t.value == "-1") ||
                (row->name == "num_train_epochs" && by_steps));
    if (!row) {
      own.arguments.push_back(all[i]);
      continue;
    }
    if (row->kind == Kind::same && !none) {
      own.arguments.push_back(std::string(row->says) + (t.joined ? "=" + t.value : ""));
      continue;  // the value follows unchanged
    }
    if (row->kind == Kind::nothing)
      own.notes.push_back(fmt::format("--{} has no effect: {}", row->name, row->says));
    if (row->kind == Kind::refused) require_asks_for_nothing(*row, t);
    i += size_t(t.separate);
  }
  return own;
}

}  // namespace cleave::app
