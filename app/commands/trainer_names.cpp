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
  same,     // another name of our option `says`
  nothing,  // accepted: `says` why it changes nothing
  refused,  // unless it asks for nothing: `says` what to write
};

struct Row {
  std::string_view name;
  Kind kind;
  std::string_view says;
  std::string_view harmless = {};  // refused: further values that ask for nothing here, separated by blanks
};

constexpr std::string_view kLog =
    "the loss of every step is in --metrics, and steps_per_print of the ds_config prints";
constexpr std::string_view kLoader = "data are read by a thread of their own, ahead of their step";
constexpr std::string_view kRanks = "gradients are summed as the ds_config says";
constexpr std::string_view kHub = "nothing is sent to a hub; --export writes the folder, which can be";
constexpr std::string_view kCompile = "nothing is compiled at run time; the kernels are built in";
constexpr std::string_view kMemory = "memory is planned, and --metrics has what was measured";
constexpr std::string_view kEval = "evaluation computes the mean loss and the accuracy over all targets";
constexpr std::string_view kTpu = "there is no backend for it; --device chooses among cpu and cuda";
constexpr std::string_view kOneTask = "samples are tokens, and the next token is the label";
constexpr std::string_view kShards =
    "zero_optimization.stage 3 in the ds_config divides parameters, gradients and state";

constexpr std::string_view kRecomputed = "\"activation_checkpointing\": {\"interval\": 1} in the ds_config";
constexpr std::string_view kRecomputedHow = "activation_checkpointing of the ds_config has such choices";

constexpr Row kRows[] = {
    {"accelerator_config", Kind::refused, "the ds_config says how the training is divided"},
    {"activation_checkpointing", Kind::refused, kRecomputed},
    {"activation_checkpointing_kwargs", Kind::refused, kRecomputedHow},
    {"adafactor", Kind::refused, "optimizer.type of the ds_config chooses; Adafactor is not built"},
    {"auto_find_batch_size", Kind::refused, "cleave plan --suggest finds what fits"},
    {"average_tokens_across_devices", Kind::nothing,
     "the loss is what cleave.loss_average of the ds_config says"},
    {"batch_eval_metrics", Kind::nothing, kEval},
    {"bf16_full_eval", Kind::refused,
     "evaluation computes in the type of the training; bf16.enabled in the ds_config"},
    {"block_size", Kind::same, "--seq_len"},
    {"cache_dir", Kind::nothing, "nothing is downloaded"},
    {"config_name", Kind::refused, "--model takes a config.json, and the folder of one"},
    {"data_seed", Kind::refused, "--seed is that of the sample order, too"},
    {"dataloader_drop_last", Kind::refused, "\"dataloader_drop_last\": true in the ds_config"},
    {"dataloader_in_order", Kind::nothing, kLoader},
    {"dataloader_multiprocessing_context", Kind::nothing, kLoader},
    {"dataloader_num_workers", Kind::nothing, kLoader},
    {"dataloader_persistent_workers", Kind::nothing, kLoader},
    {"dataloader_pin_memory", Kind::nothing, kLoader},
    {"dataloader_prefetch_factor", Kind::nothing, kLoader},
    {"dataset_config_name", Kind::refused,
     "nothing is downloaded; --data takes a text, a .jsonl or token files"},
    {"dataset_name", Kind::refused, "nothing is downloaded; --data takes a text, a .jsonl or token files"},
    {"ddp_backend", Kind::refused, "--transport and --gpu_transport choose", "gloo nccl"},
    {"ddp_broadcast_buffers", Kind::nothing, kRanks},
    {"ddp_bucket_cap_mb", Kind::nothing, kRanks},
    {"ddp_find_unused_parameters", Kind::nothing, kRanks},
    {"ddp_static_graph", Kind::nothing, kRanks},
    {"ddp_timeout", Kind::refused, "\"cleave\": {\"comm_timeout_s\": ...} in the ds_config"},
    {"debug", Kind::refused, "--trace and wall_clock_breakdown of the ds_config show what happens"},
    {"disable_tqdm", Kind::nothing, "the bar is drawn on terminals only"},
    {"do_eval", Kind::nothing, "--eval_data asks for it"},
    {"do_predict", Kind::refused, "cleave eval and cleave generate do that with a checkpoint"},
    {"do_train", Kind::nothing, "this command trains"},
    {"enable_jit_checkpoint", Kind::nothing, "a SIGTERM always saves and ends with exit code 75"},
    {"eval_accumulation_steps", Kind::nothing, kEval},
    {"eval_delay", Kind::refused, "evaluations begin with the first --eval_interval"},
    {"eval_do_concat_batches", Kind::nothing, kEval},
    {"eval_on_start", Kind::refused, "cleave eval does that with a checkpoint or a model's folder"},
    {"eval_steps", Kind::same, "--eval_interval"},
    {"eval_strategy", Kind::refused,
     "--eval_interval says after how many steps; the first lines say those of an epoch", "steps"},
    {"eval_use_gather_object", Kind::nothing, kEval},
    {"evaluation_strategy", Kind::refused,
     "--eval_interval says after how many steps; the first lines say those of an epoch", "steps"},
    {"fp16_backend", Kind::nothing, "fp16 has one implementation here"},
    {"fp16_full_eval", Kind::refused,
     "evaluation computes in the type of the training; fp16.enabled in the ds_config"},
    {"fp16_opt_level", Kind::nothing, "fp16 has one implementation here"},
    {"fsdp", Kind::refused, kShards},
    {"fsdp_config", Kind::refused, kShards},
    {"fsdp_min_num_params", Kind::refused, kShards},
    {"fsdp_transformer_layer_cls_to_wrap", Kind::refused, kShards},
    {"full_determinism", Kind::nothing,
     "runs that are started alike have the same bits; cleave.deterministic of the ds_config"},
    {"gradient_checkpointing", Kind::refused, kRecomputed},
    {"gradient_checkpointing_kwargs", Kind::refused, kRecomputedHow},
    {"greater_is_better", Kind::refused, "the best checkpoint has the smallest validation loss"},
    {"group_by_length", Kind::refused, "--pack fills samples with whole documents"},
    {"half_precision_backend", Kind::nothing, "each type has one implementation here"},
    {"hub_always_push", Kind::refused, kHub},
    {"hub_model_id", Kind::refused, kHub},
    {"hub_private_repo", Kind::refused, kHub},
    {"hub_revision", Kind::refused, kHub},
    {"hub_strategy", Kind::refused, kHub},
    {"hub_token", Kind::refused, kHub},
    {"ignore_data_skip", Kind::refused,
     "a run that goes on takes the samples that come next; --seed gives another order"},
    {"include_for_metrics", Kind::nothing, kEval},
    {"include_inputs_for_metrics", Kind::nothing, kEval},
    {"include_num_input_tokens_seen", Kind::nothing, "--metrics has the tokens of every step"},
    {"include_tokens_per_second", Kind::nothing, "--metrics has the tokens a second of every step"},
    {"jit_mode_eval", Kind::nothing, kCompile},
    {"label_names", Kind::nothing, kOneTask},
    {"label_smoothing_factor", Kind::refused, "smoothed labels are not built"},
    {"length_column_name", Kind::nothing, kOneTask},
    {"liger_kernel_config", Kind::nothing, "the kernels are this program's"},
    {"load_best_model_at_end", Kind::refused,
     "--keep_best keeps the checkpoint with the smallest validation loss"},
    {"log_level", Kind::nothing, "messages are few and have no levels"},
    {"log_level_replica", Kind::nothing, "messages are few and have no levels"},
    {"log_on_each_node", Kind::nothing, "the first rank speaks for all"},
    {"logging_dir", Kind::refused,
     "\"tensorboard\": {\"enabled\": true, \"output_path\": ...} in the ds_config"},
    {"logging_first_step", Kind::nothing, kLog},
    {"logging_nan_inf_filter", Kind::nothing, "a loss that is not finite ends the training"},
    {"logging_steps", Kind::nothing, kLog},
    {"logging_strategy", Kind::nothing, kLog},
    {"low_cpu_mem_usage", Kind::nothing, "a rank reads only what it holds"},
    {"lr_scheduler_kwargs", Kind::refused, "scheduler.params of the ds_config has a schedule's arguments"},
    {"max_eval_samples", Kind::refused, "cleave data split cuts a text; --eval_data is evaluated whole"},
    {"max_seq_length", Kind::same, "--seq_len"},
    {"max_steps", Kind::same, "--steps"},
    {"max_train_samples", Kind::refused, "cleave data split cuts a text"},
    {"metric_for_best_model", Kind::refused, "the best checkpoint has the smallest validation loss",
     "loss eval_loss"},
    {"model_max_length", Kind::same, "--seq_len"},
    {"model_name_or_path", Kind::same, "--model"},
    {"mp_parameters", Kind::refused, "pipeline and tensor_parallel are sections of the ds_config"},
    {"neftune_noise_alpha", Kind::refused, "noise on embeddings is not built"},
    {"no_cuda", Kind::refused, "--device cpu"},
    {"num_train_epochs", Kind::same, "--epochs"},
    {"optim", Kind::refused, "optimizer.type of the ds_config chooses",
     "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused"},
    {"optim_args", Kind::refused, "optimizer.params of the ds_config has an optimizer's arguments"},
    {"optim_target_modules", Kind::refused, "all of a model's weights are trained by one optimizer"},
    {"output_dir", Kind::same, "--output"},
    {"overwrite_output_dir", Kind::refused, "--resume never begins anew in a folder that has checkpoints"},
    {"parallelism_config", Kind::refused, "pipeline and tensor_parallel are sections of the ds_config"},
    {"past_index", Kind::refused, "models have no memory of earlier samples", "-1"},
    {"per_device_eval_batch_size", Kind::nothing,
     "evaluation takes train_micro_batch_size_per_gpu samples at a time"},
    {"per_gpu_eval_batch_size", Kind::nothing,
     "evaluation takes train_micro_batch_size_per_gpu samples at a time"},
    {"per_gpu_train_batch_size", Kind::same, "--per_device_train_batch_size"},
    {"prediction_loss_only", Kind::nothing, kEval},
    {"project", Kind::nothing, "metrics are files: --metrics, tensorboard, csv_monitor"},
    {"push_to_hub", Kind::refused, kHub},
    {"push_to_hub_model_id", Kind::refused, kHub},
    {"push_to_hub_organization", Kind::refused, kHub},
    {"push_to_hub_token", Kind::refused, kHub},
    {"ray_scope", Kind::nothing, "nothing is searched"},
    {"remove_unused_columns", Kind::nothing, kOneTask},
    {"report_to", Kind::refused,
     "tensorboard and csv_monitor are sections of the ds_config, and --metrics writes JSON lines"},
    {"restore_callback_states_from_checkpoint", Kind::nothing, "there are no callbacks"},
    {"resume_from_checkpoint", Kind::refused,
     "a run that is started again goes on from the newest checkpoint in --output; --resume NAME takes "
     "another"},
    {"run_name", Kind::nothing, "a run is known by its --output"},
    {"save_on_each_node", Kind::nothing, "every rank writes its part to --output"},
    {"save_only_model", Kind::refused, "--export writes the weights alone at the end"},
    {"save_safetensors", Kind::nothing, "checkpoints are safetensors files"},
    {"save_steps", Kind::same, "--save_interval"},
    {"save_strategy", Kind::refused, "--save_interval says after how many steps; --keep_best keeps the best",
     "steps"},
    {"save_total_limit", Kind::same, "--keep"},
    {"skip_memory_metrics", Kind::nothing, kMemory},
    {"tf32", Kind::refused, "\"cleave\": {\"tf32\": true} in the ds_config"},
    {"tokenizer_name", Kind::same, "--tokenizer"},
    {"torch_compile", Kind::nothing, kCompile},
    {"torch_compile_backend", Kind::nothing, kCompile},
    {"torch_compile_mode", Kind::nothing, kCompile},
    {"torch_dtype", Kind::refused, "fp16.enabled or bf16.enabled in the ds_config chooses the model's type",
     "auto float32"},
    {"torch_empty_cache_steps", Kind::nothing, kMemory},
    {"torchdynamo", Kind::nothing, kCompile},
    {"tpu_metrics_debug", Kind::refused, kTpu},
    {"tpu_num_cores", Kind::refused, kTpu},
    {"trackio_bucket_id", Kind::refused, kHub},
    {"trackio_space_id", Kind::refused, kHub},
    {"trackio_static_space_id", Kind::refused, kHub},
    {"train_file", Kind::same, "--data"},
    {"train_sampling_strategy", Kind::refused,
     "samples come in an order that --seed gives; --pack fills them", "random"},
    {"trust_remote_code", Kind::refused,
     "no code of a model's folder is run; docs/models.md lists what is built"},
    {"use_cache", Kind::nothing, "training keeps no keys and values of earlier positions"},
    {"use_cpu", Kind::refused, "--device cpu"},
    {"use_fast_tokenizer", Kind::nothing, "tokenizers have one implementation here"},
    {"use_ipex", Kind::refused, kTpu},
    {"use_legacy_prediction_loop", Kind::nothing, kEval},
    {"use_liger_kernel", Kind::nothing, "the kernels are this program's"},
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

// An option as it was typed: its name in this program's spelling, and its value, where it has one.
struct Typed {
  std::string name, value;
  bool joined = false, apart = false;  // name=value; value is the next word
};

Typed typed_at(const Arguments& all, size_t i) {
  Typed t;
  const size_t equals = std::min(all[i].find('='), all[i].size());
  t.name = all[i].substr(2, equals - 2), t.joined = equals < all[i].size();
  std::replace(t.name.begin(), t.name.end(), '-', '_');
  t.apart = !t.joined && i + 1 < all.size() && !all[i + 1].starts_with("--");
  t.value = t.joined ? all[i].substr(equals + 1) : t.apart ? all[i + 1] : "true";
  return t;
}

void require_asks_for_nothing(const Row& row, const Typed& t) {
  std::string value = t.value;
  for (char& c : value)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  if (value.empty() || among("false no none 0 0.0", value) || among(row.harmless, value)) return;
  fail(Exit::usage, "--{} {} of Hugging Face's Trainer is not an option here: {}", row.name,
       is_secret(row.name) ? "masked" : t.value, row.says);
}

}  // namespace

OwnArguments own_arguments(const Arguments& all) {
  OwnArguments own;
  bool by_steps = false;  // as the Trainer does, steps decide where epochs are given too
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].starts_with("--"))
      if (const Typed t = typed_at(all, i); t.name == "max_steps") by_steps = t.value != "-1";
  for (size_t i = 0; i < all.size(); ++i) {
    const bool option = all[i].starts_with("--") && all[i].size() > 2;
    const Typed t = option ? typed_at(all, i) : Typed{};
    const Row* row = option ? row_of(t.name) : nullptr;
    // Its -1 stands for no limit by steps, or on what is saved.
    const bool none =
        row && (((row->name == "max_steps" || row->name == "save_total_limit") && t.value == "-1") ||
                (row->name == "num_train_epochs" && by_steps));
    if (!row) {
      own.arguments.push_back(all[i]);
      continue;
    }
    if (row->kind == Kind::same && !none) {
      own.arguments.push_back(std::string(row->says) + (t.joined ? "=" + t.value : ""));
      continue;  // the value follows as it is
    }
    if (row->kind == Kind::nothing)
      own.notes.push_back(fmt::format("--{} changes nothing here: {}", row->name, row->says));
    if (row->kind == Kind::refused) require_asks_for_nothing(*row, t);
    i += size_t(t.apart);
  }
  return own;
}

}  // namespace cleave::app
