#include <fmt/core.h>

#include "config_schema/batch_sizes.h"
#include "config_schema/reading.h"

namespace cleave {
namespace {

constexpr const char* kBatchKeys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"};

void resolve_batch(Reading& r) {
  DsConfig& c = r.result.config;
  for (const char* path : kBatchKeys)
    if (const Given* g = r.entry(path); g && !g->usable) return;
  const auto given = [](int64_t size) { return size > 0 ? std::optional(size) : std::nullopt; };
  BatchSizes sizes{given(c.train_batch_size), given(c.train_micro_batch_size_per_gpu),
                   given(c.gradient_accumulation_steps)};
  if (r.options.micro_batch_size) sizes = {std::nullopt, r.options.micro_batch_size, 1};
  const Given* micro = r.entry("train_micro_batch_size_per_gpu");
  if (!sizes.train && !sizes.micro && micro && micro->origin == "auto")
    sizes.micro = r.options.auto_values.default_micro_batch_size;
  const int64_t stages = c.pipeline.stages, tensor = c.tensor_parallel.size(), sequence = c.sequence_ranks();
  const int64_t world = r.options.world_size, share = stages * tensor * sequence;
  if (world % share != 0) return;  // reported at the key of the axis that does not divide
  std::string origin = r.options.world_origin;
  if (share > 1 && origin.empty()) origin = fmt::format("{} ranks", world);
  if (stages > 1) origin += fmt::format(" / {} pipeline stages", stages);
  if (tensor > 1) origin += fmt::format(" / {} tensor ranks", tensor);
  if (sequence > 1) origin += fmt::format(" / {} sequence ranks", sequence);
  const SolvedBatch solved = solve_batch(sizes, world / share, origin);
  if (!solved.error.empty()) {
    const Given* at = nullptr;
    for (const char* path : kBatchKeys)
      if (!at) at = r.entry(path);
    return r.error(at ? at->where : TextPosition{}, at ? at->shown : "train_batch_size", solved.error);
  }
  const char* how = "derived";
  if (!sizes.train) r.derived[kBatchKeys[0]] = how;
  if (!sizes.micro) r.derived[kBatchKeys[1]] = how;
  if (!sizes.accumulation) r.derived[kBatchKeys[2]] = how;
  c.train_batch_size = *solved.sizes.train;
  c.train_micro_batch_size_per_gpu = *solved.sizes.micro;
  c.gradient_accumulation_steps = *solved.sizes.accumulation;
}

std::string divisors(int64_t n) {
  std::string text;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", d);
  return text;
}

void resolve_tensor(Reading& r) {
  const DsConfig& c = r.result.config;
  const TensorParallelConfig& t = c.tensor_parallel;
  if (t.autotp_size > 1 && t.tp_size > 1 && t.autotp_size != t.tp_size)
    r.error_at(
        "tensor_parallel.tp.tp_size",
        fmt::format("{}, but tensor_parallel.autotp_size is {}; they are one number, so give one of them",
                    t.tp_size, t.autotp_size));
  const int64_t world = r.options.world_size, stages = c.pipeline.stages;
  if (world % stages != 0 || world / stages % t.size() == 0) return;
  const char* key = t.autotp_size > 1 ? "tensor_parallel.autotp_size" : "tensor_parallel.tp.tp_size";
  r.error_at(key, fmt::format("{} tensor ranks do not divide {} ranks{}; use {}", t.size(), world / stages,
                              stages > 1 ? " of a pipeline stage" : "", divisors(world / stages)));
}

void resolve_sequence(Reading& r) {
  const DsConfig& c = r.result.config;
  const int64_t share = int64_t{c.pipeline.stages} * c.tensor_parallel.size(), world = r.options.world_size;
  if (world % share != 0 || world / share % c.sequence_ranks() == 0) return;
  r.error_at("sequence_parallel_size",
             fmt::format("{} sequence ranks do not divide {} ranks{}; use {}", c.sequence_ranks(),
                         world / share, share > 1 ? " beside each other on the pipe and tensor axes" : "",
                         divisors(world / share)));
}

void resolve_pipeline(Reading& r) {
  PipelineConfig& p = r.result.config.pipeline;
  const int64_t world = r.options.world_size;
  if (p.stages == 0) p.stages = 1, r.derived["pipeline.stages"] = "derived";
  if (world % p.stages != 0)
    r.error_at("pipeline.stages",
               fmt::format("{} stages do not divide {} ranks; use {}", p.stages, world, divisors(world)));
  const bool file = p.schedule.ends_with(".json");
  if (!file && p.schedule != "gpipe" && p.schedule != "1f1b" && p.schedule != "interleaved" &&
      p.schedule != "zb-h1")
    r.error_at("pipeline.schedule",
               fmt::format("there is no schedule \"{}\"; use gpipe, 1f1b, interleaved, zb-h1, or "
                           "the path of a .json file",
                           p.schedule));
  if (p.stages > 1 && p.virtual_stages > 1 && !file && p.schedule != "interleaved")
    r.error_at("pipeline.virtual_stages",
               fmt::format("{} pieces a rank need the schedule \"interleaved\"; {} has one", p.virtual_stages,
                           p.schedule));
  const std::string& method = p.partition_method;
  const bool listed = !method.empty() && method.find_first_not_of("0123456789,") == std::string::npos;
  if (!listed && method != "balanced" && method != "parameters" && method != "uniform" &&
      !method.starts_with("type:"))
    r.error_at(
        "pipeline.partition_method",
        fmt::format("there is no method \"{}\"; use balanced, parameters, uniform, type:REGEX, or numbers of "
                    "layers such as \"3,4,4,3\"",
                    method));
  if (p.stages == 1) p.virtual_stages = 1;
}

void resolve_precision(Reading& r) {
  DsConfig& c = r.result.config;
  c.precision = c.fp16.enabled ? Precision::fp16 : c.bf16_enabled ? Precision::bf16 : Precision::fp32;
  if (c.fp16.enabled && c.bf16_enabled)
    r.error_at("bf16.enabled",
               "fp16.enabled and bf16.enabled are both true; a model has one type, so choose one");
  if (c.grad_accum_dtype && *c.grad_accum_dtype != Precision::fp32 && *c.grad_accum_dtype != c.precision)
    r.error_at("data_types.grad_accum_dtype",
               "gradients are accumulated in fp32 or in the model's type; choose one of these");
  // Compared by name through a scratch field, because the key itself is only a cross-check.
  if (const JsonValue* v = r.value("data_types.param_dtype"); v && v->kind == JsonValue::Kind::text) {
    const bool is_bf16 = v->text.find("bf") != std::string::npos;
    const bool is_fp16 = !is_bf16 && (v->text.find("16") != std::string::npos || v->text == "half");
    const Precision wanted = is_bf16 ? Precision::bf16 : is_fp16 ? Precision::fp16 : Precision::fp32;
    if (wanted != c.precision)
      r.error_at("data_types.param_dtype",
                 "differs from the type that fp16.enabled and bf16.enabled choose; make them agree");
  }
}

// Groups of near ranks must divide the data axis, to which ranks that share a sequence belong.
void resolve_near_ranks(Reading& r) {
  const DsConfig& c = r.result.config;
  const int64_t share = int64_t{c.pipeline.stages} * c.tensor_parallel.size();
  if (r.options.world_size % share != 0)
    return;  // reported at pipeline.stages or tensor_parallel.autotp_size
  const int64_t data = r.options.world_size / share;
  auto check = [&](const char* key, int64_t size) {
    if (size > 0 && data % size == 0) return;
    r.error_at(key, fmt::format("{} ranks do not divide the {} of the data axis; use {}", size, data,
                                divisors(data)));
  };
  const ZeroConfig& z = c.zero;
  if (z.stage != 3) return;
  if (z.mics_shard_size != -1) check("zero_optimization.mics_shard_size", z.mics_shard_size);
  if (z.zero_hpz_partition_size != 1)
    check("zero_optimization.zero_hpz_partition_size", z.zero_hpz_partition_size);
  if (z.mics_shard_size > 0 && z.zero_hpz_partition_size > 1)
    r.error_at("zero_optimization.zero_hpz_partition_size",
               "and mics_shard_size are two ways to gather among near ranks only; choose one");
}

void resolve_old_spelling(Reading& r, const std::string& old, const std::string& section,
                          std::string& device) {
  if (!r.boolean("zero_optimization." + old, false)) return;
  const std::string key = fmt::format("zero_optimization.{}.device", section);
  if (r.entry(key))
    r.error_at("zero_optimization." + old,
               fmt::format("is the old spelling of {}.device, which is given too; remove {}", section, old));
  device = "cpu", r.derived[key] = "derived";
}

void resolve_zero(Reading& r) {
  ZeroConfig& z = r.result.config.zero;
  const Given* overlap = r.entry("zero_optimization.overlap_comm");
  const bool chosen = overlap && overlap->usable && overlap->value->kind == JsonValue::Kind::boolean;
  if (!chosen) z.overlap_comm = z.stage == 3, r.derived["zero_optimization.overlap_comm"] = "derived";
  resolve_old_spelling(r, "cpu_offload", "offload_optimizer", z.offload_optimizer.device);
  resolve_old_spelling(r, "cpu_offload_param", "offload_param", z.offload_param.device);
  const JsonValue *whole = r.value("zero_optimization"), *bucket = r.value("allgather_size");
  if (whole && whole->kind == JsonValue::Kind::boolean && bucket && bucket->integer)
    z.allgather_bucket_size = *bucket->integer,
    r.derived["zero_optimization.allgather_bucket_size"] = "derived";
  resolve_near_ranks(r);
  if (z.stage == 3 && z.offload_param.device == "nvme" && z.offload_param.nvme_path.empty())
    r.error_at("zero_optimization.offload_param.device",
               "\"nvme\" needs nvme_path beside it: a folder on a local disk, the same on every host");
  if (z.offload_optimizer.device != "nvme") return;
  if (z.offload_optimizer.nvme_path.empty())
    r.error_at("zero_optimization.offload_optimizer.device",
               "\"nvme\" needs nvme_path beside it: a folder on a local disk, the same on every host");
  if (const int64_t block = r.result.config.aio.block_size; block % 4096 != 0)
    r.error_at("aio.block_size", fmt::format("must be a multiple of 4096, got {}", block));
}

void resolve_gradients(Reading& r) {
  DsConfig& c = r.result.config;
  if (const JsonValue* op = r.value("gradient_allreduce_op"))
    c.gradient_sum = op->text.size() == 3;  // of mean and sum in any case
  if (c.gradient_sum && c.zero.stage == 3)
    r.error_at("gradient_allreduce_op", "\"sum\" does not go with zero_optimization.stage 3; use \"mean\"");
  if (c.zero.stage < 2 || !r.boolean("zero_optimization.reduce_scatter", true)) return;
  const std::string advice = fmt::format(
      "does not go with zero_optimization.stage {} and reduce_scatter; remove it, or use "
      "stage 0 or 1",
      c.zero.stage);
  if (c.prescale_gradients) r.error_at("prescale_gradients", "true " + advice);
  if (c.gradient_predivide_factor != 1) r.error_at("gradient_predivide_factor", "other than 1 " + advice);
}

void resolve_optimizer(Reading& r) {
  OptimizerConfig& o = r.result.config.optimizer;
  if (r.entry("optimizer.params") && !r.entry("optimizer.type"))
    r.error_at(
        "optimizer.params",
        "there is no optimizer.type these arguments belong to; give Adam, AdamW, Lamb, Lion, Adagrad or SGD");
  if (r.boolean("optimizer.params.torch_adam", false)) {
    if (r.entry("optimizer.params.bias_correction"))
      r.error_at("optimizer.params.bias_correction",
                 "PyTorch's Adam has no such argument; remove it or torch_adam");
    const bool decoupled = o.type == "AdamW" || o.decoupled;
    if (decoupled && !r.entry("optimizer.params.weight_decay"))
      o.weight_decay = 0.01, r.derived["optimizer.params.weight_decay"] = "derived";
  }
  if (o.type == "AdamW") o.decoupled = true;
  const auto adagrads = [&](const char* path, double& field, double value) {
    if (o.type == "Adagrad" && !r.entry(path)) field = value, r.derived[path] = "derived";
  };
  adagrads("optimizer.params.lr", o.lr, 1e-2);
  adagrads("optimizer.params.eps", o.eps, 1e-10);
  if (o.type == "SGD" && o.nesterov && (o.momentum == 0 || o.dampening != 0))
    r.error_at("optimizer.params.nesterov", "needs optimizer.params.momentum above 0 and dampening 0");
  if (o.min_coeff > o.max_coeff)
    r.error_at("optimizer.params.min_coeff",
               fmt::format("is {}, more than optimizer.params.max_coeff, {}; exchange them", o.min_coeff,
                           o.max_coeff));
  for (const double beta : {o.beta1, o.beta2})
    if (beta >= 1) return r.error_at("optimizer.params.betas", "must be below 1, or the moments never move");
}

void resolve_scheduler(Reading& r) {
  SchedulerConfig& s = r.result.config.scheduler;
  const auto required = [&](const char* name) {
    const std::string path = fmt::format("scheduler.params.{}", name);
    if (const Given* g = r.entry(path); !g || (g->value->kind == JsonValue::Kind::null))
      r.error_at("scheduler.type", fmt::format("{} needs {}", s.type, path));
  };
  if (s.type.empty() && r.entry("scheduler.params"))
    r.error_at("scheduler.params",
               "there is no scheduler.type these arguments belong to; give one, or remove the section");
  if (s.type == "WarmupDecayLR" || s.type == "WarmupCosineLR") {
    required("total_num_steps");
    if (s.total_num_steps > 0 && s.total_num_steps < s.warmup_num_steps)
      r.warning_at("scheduler.params.total_num_steps",
                   fmt::format("{} is less than scheduler.params.warmup_num_steps {}: the warm-up never ends",
                               s.total_num_steps, s.warmup_num_steps));
  }
  if (s.type == "WarmupDecayLR" && !r.entry("scheduler.params.warmup_max_lr"))
    s.warmup_max_lr = 0.001, r.derived["scheduler.params.warmup_max_lr"] = "derived";
  if (s.type == "OneCycle") required("cycle_min_lr"), required("cycle_max_lr");
  if (s.type == "OneCycle" && !r.result.config.optimizer.has_betas())
    s.cycle_momentum = false, r.derived["scheduler.params.cycle_momentum"] = "derived";
}

void resolve_checkpointing(Reading& r) {
  CheckpointingConfig& c = r.result.config.checkpointing;
  const std::string section = "activation_checkpointing.";
  const int64_t other = r.result.config.pipeline.checkpoint_interval;
  if (c.interval > 0 && other > 0 && c.interval != other)
    r.error_at(section + "interval",
               fmt::format("{} differs from pipeline.activation_checkpoint_interval {}; give one of them",
                           c.interval, other));
  if (c.interval == 0) c.interval = other;
  if (c.interval > 0 && c.number > 0)
    r.error_at(section + "number_checkpoints",
               fmt::format("an interval of {} layers says it already; give one of them", c.interval));
  c.lean = c.policy == "selective";
  if (c.lean && (c.interval > 0 || c.number > 0 || c.to_host || c.partition))
    r.error_at(section + "policy",
               "\"selective\" keeps no inputs of groups of layers; remove it, or the interval, "
               "number_checkpoints, cpu_checkpointing and partition_activations");
  bool asked = c.to_host || c.partition;
  for (const char* key : {"contiguous_memory_optimization", "synchronize_checkpoint_boundary"})
    asked = asked || r.boolean(section + key, false);
  if (c.lean || c.interval > 0 || (!asked && c.number == 0)) return;
  if (r.entry(section + "interval")) {
    r.warning_at(section + "interval", "0 keeps recomputation off; other keys of the section ask for it");
    c.number = 0, c.to_host = c.partition = false;
  } else if (c.number == 0) {
    c.interval = 1, r.derived[section + "interval"] = "derived";
  }
}

void check_ranks(Reading& r) {
  const JsonValue* v = r.value("data_parallel_size");
  const DsConfig& c = r.result.config;
  const int64_t share = int64_t{c.pipeline.stages} * c.tensor_parallel.size() * c.sequence_ranks(),
                ranks = r.options.world_size / share;
  if (v && v->integer && *v->integer != ranks && !r.options.micro_batch_size)
    r.error_at("data_parallel_size",
               fmt::format("there are {} data-parallel ranks; remove the key or start {}", ranks,
                           *v->integer * share));
}

}  // namespace

void resolve_config(Reading& reading) {
  resolve_precision(reading);
  resolve_pipeline(reading);
  resolve_tensor(reading);
  resolve_sequence(reading);
  resolve_batch(reading);
  resolve_zero(reading);
  resolve_gradients(reading);
  resolve_optimizer(reading);
  resolve_scheduler(reading);
  resolve_checkpointing(reading);
  check_ranks(reading);
}

}  // namespace cleave
