// A DeepSpeed configuration after reading: typed and validated, with batch sizes and "auto"
// resolved. One describe() function per section (keys.h) defines the meaning of each key for
// parsing, printing and the documentation.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config_schema/choices.h"
#include "config_schema/fp8_rule.h"
#include "config_schema/parallel_config.h"

namespace cleave::config {

struct OptimizerConfig {
  OptimizerType type = OptimizerType::adamw;
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool bias_correction = true;
  bool decoupled = true;  // decoupled weight decay: AdamW, and Adam unless adam_w_mode is false
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double lr_decay = 0;
  double min_coeff = 0.01, max_coeff = 10;  // of Lamb's ratio of norms

  bool has_betas() const { return kOptimizers[size_t(type)].has("betas"); }
};

// Parameters of learning-rate schedules; the type decides which ones are read.
struct SchedulerConfig {
  SchedulerType type = SchedulerType::constant;
  std::optional<double> warmup_max_lr;  // absent: the optimizer's lr
  double warmup_min_lr = 0;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::log;
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  double cycle_min_lr = 0, cycle_max_lr = 0, decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size;
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9, decay_mom_rate = 0;
  double lr_range_test_min_lr = 1e-3, lr_range_test_step_rate = 1;
  int64_t lr_range_test_step_size = 2000;
  bool lr_range_test_staircase = false;
};

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  // 0: dynamic
  int initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

struct OffloadConfig {
  OffloadDevice device = OffloadDevice::none;
  bool pin_memory = true;
  std::string nvme_path;
  int64_t buffer_count = 4;  // tiles in memory at a time
  double ratio = 1;          // of each rank's optimizer state; the rest stays on the device
};

// Reads and writes of offloaded state in files.
struct AioConfig {
  int64_t block_size = 1 << 20, queue_depth = 32, intra_op_parallelism = 8;
};

struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::none;
  bool pin_memory = true;
  std::string nvme_path;            // device nvme: folder of the files
  int64_t buffer_count = 5;         // device nvme: staging buffers, each of the largest shard
  int64_t max_in_cpu = 1000000000;  // device nvme: elements per rank that stay in host memory
};

struct ZeroConfig {
  int stage = 0;
  bool overlap_comm = false;  // resolved: stage 3 by default
  int64_t reduce_bucket_size = 500'000'000, allgather_bucket_size = 500'000'000;
  int64_t stage3_prefetch_bucket_size = 50'000'000;
  int64_t stage3_param_persistence_threshold = 100'000;
  int64_t stage3_max_live_parameters = 1'000'000'000;
  bool stage3_gather_16bit_weights_on_model_save = false;
  int64_t mics_shard_size = -1;         // ranks that share a copy of the whole state; -1: the data axis
  int64_t zero_hpz_partition_size = 1;  // ranks that share a copy of the parameters; 1: the data axis
  bool quantized_weights = false;       // stage 3 gathers move one byte per element, and scales
  static constexpr int64_t kLeastOnDisk = int64_t{1} << 16;
  int64_t sub_group_size = 1'000'000'000;  // elements of optimizer state per update, on disk
  OffloadConfig offload_optimizer;
  OffloadParamConfig offload_param;

  // Number of consecutive data-parallel ranks that gather parameters among themselves; 0: no such
  // groups.
  int near_ranks() const {
    if (stage != 3) return 0;
    if (mics_shard_size > 0) return int(mics_shard_size);
    return zero_hpz_partition_size > 1 ? int(zero_hpz_partition_size) : 0;
  }
};

struct TensorBoardConfig {
  bool enabled = false;
  std::string output_path, job_name = "DeepSpeedJobName";
};

struct CsvConfig {
  bool enabled = false;
  std::string output_path, job_name = "DeepSpeedJobName";
};

// Runs of Weights & Biases, which its Python package writes.
struct WandbConfig {
  bool enabled = false;
  std::string group, team;  // empty: none
  std::string project = "deepspeed";
};

// Table of the costs of each layer in one step.
struct FlopsProfilerConfig {
  bool enabled = false;
  int64_t profile_step = 1;   // number of steps before the profiled one
  int64_t module_depth = -1;  // 0: only the whole model
  int64_t top_modules = 1;    // layer kinds with the most parameters, arithmetic and time
  bool detailed = true;       // one row per layer
  std::string output_file;    // empty: with the other output of the run
};

// Saving of checkpoints; three keys request the same background saves.
struct CheckpointConfig {
  bool async = false;           // checkpoint.async
  bool decoupled = false;       // checkpoint.writer.decoupled
  bool nebula = false;          // nebula.enabled
  int64_t nebula_versions = 2;  // number of checkpoints to keep without --keep
  // Of scripts whose ranks save with different tags.
  TagValidation tag_validation = TagValidation::warn;

  // Returns true if a copy of the state is written in the background during training.
  bool behind() const { return async || decoupled || nebula; }
};

// Log of collectives.
struct CommsLoggerConfig {
  bool enabled = false;  // resolved: the presence of the section enables it
  bool prof_all = true;
  std::vector<std::string> prof_ops;  // without prof_all: only these collectives
  bool verbose = false;               // one line per call
  bool debug = false;                 // also by group and purpose
};

// Low-rank adapters of linear layers; only the adapters are trained.
struct LoraConfig {
  std::vector<std::string> targets;  // of an AdapterRule; empty: full training
  int64_t rank = 8;
  double alpha = 8;
  bool use_rslora = false;

  double scale() const { return alpha / (use_rslora ? std::sqrt(double(rank)) : double(rank)); }
};

// Metrics to an MLflow run; variables of MLflow replace empty values.
struct MlflowConfig {
  bool enabled = false;
  std::string experiment_name, run_name;
  std::string tracking_uri;  // of a server, or a folder
};

// Batch sizes for a changing number of ranks (config_schema/elasticity.h).
struct ElasticityConfig {
  bool enabled = false;
  int64_t max_train_batch_size = 2000;
  std::vector<int64_t> micro_batch_sizes = {2, 4, 6};
  int64_t min_gpus = 1, max_gpus = 10000;
  int64_t num_gpus_per_node = 1, model_parallel_size = 1;  // version 0.2
  bool prefer_larger_batch = true, ignore_non_elastic_batch_info = false;
  double version = 0.2;
};

// Steps whose calls ranks record, for `cleave replay`.
struct RecordSteps {
  int64_t interval = 0;  // steps divisible by it; 0: none
  std::string ranks;     // numbers, "0,3"; empty: all
  int64_t keep = 1;      // newest steps to keep
  bool records(int rank) const;
};

struct DsConfig {
  int64_t train_batch_size = 0, train_micro_batch_size_per_gpu = 0, gradient_accumulation_steps = 0;
  int sequence_parallel_size = 1;     // ranks that share a sequence; 0 and 1: none
  int64_t steps_per_print = 0;        // 0: never
  bool wall_clock_breakdown = false;  // times of the phases of a step
  double gradient_clipping = 1.0;     // 0: off
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  bool gradient_sum = false;                         // gradient_allreduce_op: sum instead of mean
  std::optional<Precision> communication_data_type;  // absent: the storage type of gradients
  std::optional<Precision> grad_accum_dtype;         // absent: the model's type
  bool dataloader_drop_last = false;
  int64_t comm_timeout_s = 600;      // key "cleave": {"comm_timeout_s": ...}
  double straggler_share = 0.25;     // own time above the other ranks'; 0: no lines
  int64_t straggler_steps = 20;      // consecutive steps until a line
  int64_t replica_check_steps = 50;  // steps to compare all replicated weights once; 0: never
  ReplicaPolicy replica_policy = ReplicaPolicy::stop;
  bool copies_in_memory = false;                 // cleave train: copies of the state that survive a lost rank
  bool save_on_stop = false;                     // scripts: save when a stop is requested
  Switch visible_gradients = Switch::automatic;  // scripts: parameter.grad; auto: if read in the first step
  LossAverage loss_average = LossAverage::targets;
  bool native = false;          // scripts: the engine computes the model
  int64_t sequence_length = 0;  // scripts: length of samples; 0: all positions of the model
  std::vector<std::string> weight_decay_on = {"matrices"};  // words of a DecayRule
  std::vector<std::string> freeze;                          // patterns of a FreezeRule
  LoraConfig lora;
  Fp8Rule fp8;
  bool exact_sums = false;                   // integer gradient sums: same bits in any order
  int exact_sums_grid = 54;                  // contributions are rounded to multiples of 2^-this
  bool deepspeed_stage0_loss_scale = false;  // stage 0 in fp16: DeepSpeed's rule
  OffloadUpdate offload_update = OffloadUpdate::automatic;
  Switch cuda_graphs = Switch::automatic;  // for passes of GPU ranks; auto: where faster
  bool tf32 = false;                       // fp32 GPU products on tensor cores
  LogitsType logits_dtype = LogitsType::automatic;
  int64_t logits_rows = 0;                 // in memory at a time; 0: chosen for the device
  bool deterministic = true;               // false: GPU libraries may add in any order
  bool tune_products = true;               // measure GPU products at the first use of a shape
  std::string product_choices;             // metrics of an earlier run with choices to reuse; empty: none
  NonFinite non_finite = NonFinite::stop;  // of steps in fp32 and bf16
  int64_t non_finite_limit = 10;           // skipped in a row, or rolled back
  double loss_spike = 0;                   // factor over the median of the last losses; 0: off
  int64_t loss_spike_steps = 50;           // number of these losses
  RecordSteps record_steps;
  std::string http;  // address of the page of a run; empty: none
  bool bf16_enabled = false;
  bool check_grad_overflow = true;        // bf16
  Precision precision = Precision::fp32;  // resolved from fp16.enabled and bf16.enabled
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  Fp16Config fp16;
  ZeroConfig zero;
  AioConfig aio;
  PipelineConfig pipeline;
  TensorParallelConfig tensor_parallel;
  CheckpointingConfig checkpointing;
  CheckpointConfig checkpoint;
  TensorBoardConfig tensorboard;
  CsvConfig csv_monitor;
  WandbConfig wandb;
  MlflowConfig mlflow;
  FlopsProfilerConfig flops_profiler;
  CommsLoggerConfig comms_logger;
  ElasticityConfig elasticity;
  bool dump_state = false;        // print the engine's state at the start
  bool memory_breakdown = false;  // memory by category, after the first step and in progress lines

  int sequence_ranks() const { return std::max(1, sequence_parallel_size); }
};

}  // namespace cleave::config
