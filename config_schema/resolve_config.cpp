#include <fmt/core.h>

#include <cmath>

#include "config_schema/reading.h"

namespace cleave::config {

bool RecordSteps::records(int rank) const {
  return interval > 0 &&
         (ranks.empty() || ("," + ranks + ",").find(fmt::format(",{},", rank)) != std::string::npos);
}

namespace {

void resolve_precision(Reading& r) {
  DsConfig& c = r.result.config;
  c.precision = c.fp16.enabled ? Precision::fp16 : c.bf16_enabled ? Precision::bf16 : Precision::fp32;
  if (c.fp16.enabled && c.bf16_enabled)
    r.error_at("bf16.enabled", "fp16.enabled and bf16.enabled are both true; enable one of them");
  if (c.fp16.enabled && c.fp16.loss_scale == 0 && c.fp16.min_loss_scale < 1)
    r.error_at("fp16.min_loss_scale",
               fmt::format("expected at least 1 for a dynamic loss scale (fp16.loss_scale 0), got {}",
                           c.fp16.min_loss_scale));
  if (const double first = std::exp2(c.fp16.initial_scale_power);
      c.fp16.enabled && c.fp16.loss_scale == 0 && c.fp16.min_loss_scale > first)
    r.error_at("fp16.min_loss_scale",
               fmt::format("{:g} is above the initial loss scale 2^{} = {:g} of fp16.initial_scale_power; "
                           "the first overflow would raise the scale",
                           c.fp16.min_loss_scale, c.fp16.initial_scale_power, first));
  if (c.bf16_enabled && !c.check_grad_overflow && !c.exact_sums)
    r.warning_at(
        "bf16.check_grad_overflow",
        "false: gradients that are not finite go to the weights, and the run neither skips such a step "
        "nor stops");
  if (c.grad_accum_dtype && *c.grad_accum_dtype != Precision::fp32 && *c.grad_accum_dtype != c.precision)
    r.error_at("data_types.grad_accum_dtype",
               "gradients accumulate in fp32 or in the model's type; use one of these");
  // Compared by name through a scratch field, because the key is only a cross-check.
  if (const JsonValue* v = r.value("data_types.param_dtype"); v && v->kind == JsonValue::Kind::text) {
    const bool is_bf16 = v->text.find("bf") != std::string::npos;
    const bool is_fp16 = !is_bf16 && (v->text.find("16") != std::string::npos || v->text == "half");
    const Precision wanted = is_bf16 ? Precision::bf16 : is_fp16 ? Precision::fp16 : Precision::fp32;
    if (wanted != c.precision)
      r.error_at("data_types.param_dtype",
                 "differs from the type of fp16.enabled and bf16.enabled; make them equal");
  }
}

void resolve_old_spelling(Reading& r, const std::string& old, const std::string& section,
                          OffloadDevice& device) {
  if (!r.boolean("zero_optimization." + old, false)) return;
  const std::string key = fmt::format("zero_optimization.{}.device", section);
  if (r.entry(key))
    r.error_at("zero_optimization." + old,
               fmt::format("is the old spelling of {}.device, which is also set; remove {}", section, old));
  device = OffloadDevice::cpu, r.derived[key] = "derived";
}

void resolve_sub_group(Reading& r, ZeroConfig& z) {
  const char* key = "zero_optimization.sub_group_size";
  if (z.sub_group_size == 0) z.sub_group_size = ZeroConfig{}.sub_group_size, r.derived[key] = "derived";
  if (z.offload_optimizer.device != OffloadDevice::nvme || z.sub_group_size >= ZeroConfig::kLeastOnDisk)
    return;
  r.warning_at(key, fmt::format("{} is below the tile of {} elements on disk, which is used instead: smaller "
                                "tiles take a disk as long",
                                z.sub_group_size, ZeroConfig::kLeastOnDisk));
  z.sub_group_size = ZeroConfig::kLeastOnDisk;
}

void resolve_zero(Reading& r) {
  ZeroConfig& z = r.result.config.zero;
  resolve_sub_group(r, z);
  const Given* overlap = r.entry("zero_optimization.overlap_comm");
  const bool chosen = overlap && overlap->usable && overlap->value->kind == JsonValue::Kind::boolean;
  if (!chosen) z.overlap_comm = z.stage == 3, r.derived["zero_optimization.overlap_comm"] = "derived";
  resolve_old_spelling(r, "cpu_offload", "offload_optimizer", z.offload_optimizer.device);
  resolve_old_spelling(r, "cpu_offload_param", "offload_param", z.offload_param.device);
  const JsonValue *whole = r.value("zero_optimization"), *bucket = r.value("allgather_size");
  if (whole && whole->kind == JsonValue::Kind::boolean && bucket && bucket->integer)
    z.allgather_bucket_size = *bucket->integer,
    r.derived["zero_optimization.allgather_bucket_size"] = "derived";
  const bool state = z.offload_optimizer.device == OffloadDevice::nvme,
             weights = z.stage == 3 && z.offload_param.device == OffloadDevice::nvme;
  const auto needs_path = [&](bool used, const char* section, const std::string& path) {
    if (used && path.empty())
      r.error_at(fmt::format("zero_optimization.{}.device", section),
                 "\"nvme\" needs nvme_path: a folder on a local disk, the same on every host");
  };
  needs_path(weights, "offload_param", z.offload_param.nvme_path);
  needs_path(state, "offload_optimizer", z.offload_optimizer.nvme_path);
  if (const int64_t block = r.result.config.aio.block_size; (state || weights) && block % 4096 != 0)
    r.error_at("aio.block_size", fmt::format("must be a multiple of 4096, got {}", block));
}

void resolve_gradients(Reading& r) {
  DsConfig& c = r.result.config;
  if (const JsonValue* op = r.value("gradient_allreduce_op"))
    c.gradient_sum = op->text.size() == 3;  // mean or sum, in any case
  if (c.gradient_sum && c.zero.stage == 3)
    r.error_at("gradient_allreduce_op",
               "\"sum\" cannot be combined with zero_optimization.stage 3; use \"mean\"");
  if (c.zero.stage < 2 || !r.boolean("zero_optimization.reduce_scatter", true)) return;
  const std::string advice = fmt::format(
      "cannot be combined with zero_optimization.stage {} and reduce_scatter; remove it, or use stage 0 or 1",
      c.zero.stage);
  if (c.prescale_gradients) r.error_at("prescale_gradients", "true " + advice);
  if (c.gradient_predivide_factor != 1) r.error_at("gradient_predivide_factor", "other than 1 " + advice);
}

void resolve_optimizer(Reading& r) {
  OptimizerConfig& o = r.result.config.optimizer;
  if (r.entry("optimizer.params") && !r.entry("optimizer.type"))
    r.error_at("optimizer.params", "has no optimizer.type; set " + list_of<OptimizerType>());
  if (r.truth("optimizer.params.torch_adam")) {
    if (r.entry("optimizer.params.bias_correction"))
      r.error_at("optimizer.params.bias_correction",
                 "PyTorch's Adam has no such parameter; remove it or torch_adam");
    const bool decoupled = o.type == OptimizerType::adamw || o.decoupled;
    if (decoupled && !r.entry("optimizer.params.weight_decay"))
      o.weight_decay = 0.01, r.derived["optimizer.params.weight_decay"] = "derived";
  }
  if (o.type == OptimizerType::adamw) o.decoupled = true;
  const char* decoupled = "optimizer.params.decoupled_weight_decay";
  if (r.boolean(decoupled, o.decoupled) != o.decoupled)
    r.error_at(
        decoupled,
        o.decoupled
            ? R"(false asks for decay within the gradient; use the type Adam with "adam_w_mode": false)"
            : R"(true asks for decay apart from the gradient; set "adam_w_mode" to true)");
  const auto adagrads = [&](const char* path, double& field, double value) {
    if (o.type == OptimizerType::adagrad && !r.entry(path)) field = value, r.derived[path] = "derived";
  };
  adagrads("optimizer.params.lr", o.lr, 1e-2);
  adagrads("optimizer.params.eps", o.eps, 1e-10);
  if (o.type == OptimizerType::sgd && o.nesterov && (o.momentum == 0 || o.dampening != 0))
    r.error_at("optimizer.params.nesterov", "needs optimizer.params.momentum above 0 and dampening 0");
  if (o.min_coeff > o.max_coeff)
    r.error_at(
        "optimizer.params.min_coeff",
        fmt::format("is {}, above optimizer.params.max_coeff, {}; swap them", o.min_coeff, o.max_coeff));
  for (const auto& [which, beta] : {std::pair{"first", o.beta1}, {"second", o.beta2}})
    if (beta >= 1)
      return r.error_at(
          "optimizer.params.betas",
          fmt::format("the {} is {}; both must be below 1, otherwise the moments never change", which, beta));
}

void resolve_scheduler(Reading& r) {
  SchedulerConfig& s = r.result.config.scheduler;
  if (const Given* type = r.entry("scheduler.type"); type && !type->usable) return;  // the error is enough
  const auto required = [&](const char* name) {
    const std::string path = fmt::format("scheduler.params.{}", name);
    if (const Given* g = r.entry(path); !g || (g->value->kind == JsonValue::Kind::null))
      r.error_at("scheduler.type", fmt::format("{} needs {}{}", s.type, path,
                                               std::string_view(name) == "total_num_steps"
                                                   ? R"(; set it to a number, or to "auto" for --steps)"
                                                   : ""));
  };
  if (s.type == SchedulerType::constant && r.entry("scheduler.params"))
    r.error_at("scheduler.params", "has no scheduler.type; set the type, or remove the section");
  if (s.type == SchedulerType::warmup_decay || s.type == SchedulerType::warmup_cosine) {
    required("total_num_steps");
    if (s.total_num_steps > 0 && s.total_num_steps < s.warmup_num_steps)
      r.warning_at("scheduler.params.total_num_steps",
                   fmt::format("{} is less than scheduler.params.warmup_num_steps {}: the warm-up never ends",
                               s.total_num_steps, s.warmup_num_steps));
    if (const auto& steps = r.options.auto_values.total_steps;
        steps && s.total_num_steps > 0 && s.total_num_steps < *steps)
      r.warning_at(
          "scheduler.params.total_num_steps",
          fmt::format("the schedule ends at step {}, and the training has {} steps: the learning rate stays "
                      "at its last value; set \"auto\" for the length of the training",
                      s.total_num_steps, *steps));
  }
  if (s.type == SchedulerType::warmup_decay && !r.entry("scheduler.params.warmup_max_lr"))
    s.warmup_max_lr = 0.001, r.derived["scheduler.params.warmup_max_lr"] = "derived";
  if (s.type == SchedulerType::one_cycle) required("cycle_min_lr"), required("cycle_max_lr");
  if (s.type == SchedulerType::one_cycle && !r.result.config.optimizer.has_betas())
    s.cycle_momentum = false, r.derived["scheduler.params.cycle_momentum"] = "derived";
}

void resolve_lora(Reading& r) {
  const DsConfig& c = r.result.config;
  if (c.lora.targets.empty()) {
    if (r.entry("cleave.lora.targets"))
      r.error_at(
          "cleave.lora.targets",
          "adapts nothing; name linear layers, such as [\"q_proj\", \"v_proj\"], or remove cleave.lora "
          "to train all weights");
    else if (r.entry("cleave.lora.rank") || r.entry("cleave.lora.alpha") || r.entry("cleave.lora.use_rslora"))
      r.error_at("cleave.lora",
                 "has no targets; name linear layers, such as [\"q_proj\", \"v_proj\"], or \"all-linear\"");
    return;
  }
  if (!c.freeze.empty())
    r.error_at("cleave.freeze",
               "cleave.lora freezes all parameters except its adapters; remove one of the two");
}

void resolve_fp8(Reading& r) {
  const DsConfig& c = r.result.config;
  if (c.fp8 && !c.bf16_enabled)
    r.error_at("cleave.fp8.scaling", "needs bf16; set bf16.enabled to true, or cleave.fp8.scaling to off");
}

// DeepSpeed logs collectives whenever the section exists, regardless of `enabled`; here false means
// off.
void resolve_non_finite(Reading& r) {
  const DsConfig& c = r.result.config;
  if (c.loss_spike > 0 && c.loss_spike <= 1)
    r.error_at(
        "cleave.loss_spike",
        fmt::format("expected a factor above 1 over the median loss, or 0 for off, got {:g}", c.loss_spike));
  if (c.non_finite == NonFinite::roll_back && c.copies_in_memory)
    r.error_at("cleave.copies_in_memory",
               "true cannot be combined with cleave.non_finite \"roll_back\", which goes back to a "
               "step before the copies; set "
               "one of them to another value");
  if (c.non_finite == NonFinite::roll_back && r.options.front == Front::scripts)
    r.error_at("cleave.non_finite",
               "\"roll_back\" is not supported in a PyTorch script, because the script owns the data and the "
               "loop, only in cleave train; set \"skip\" or \"stop\"");
}

// The number of ranks is checked when the job is known.
void resolve_record_steps(Reading& r) {
  const std::string& ranks = r.result.config.record_steps.ranks;
  const bool numbers = ranks.find_first_not_of("0123456789,") == std::string::npos &&
                       ("," + ranks + ",").find(",,") == std::string::npos;
  if (!ranks.empty() && !numbers)
    r.error_at("cleave.record_steps.ranks",
               fmt::format("expected numbers of ranks, such as \"0,3\", got \"{}\"", ranks));
}

void resolve_comms_logger(Reading& r) {
  const Given* section = r.entry("comms_logger");
  const bool there = section && section->value->kind == JsonValue::Kind::object;
  if (!there || r.entry("comms_logger.enabled")) return;
  r.result.config.comms_logger.enabled = true, r.derived["comms_logger.enabled"] = "derived";
}

}  // namespace

void resolve_config(Reading& reading) {
  resolve_trainer_options(reading);
  resolve_precision(reading);
  resolve_non_finite(reading);
  resolve_axes(reading);
  resolve_zero(reading);
  resolve_gradients(reading);
  resolve_optimizer(reading);
  resolve_scheduler(reading);
  resolve_checkpointing(reading);
  resolve_comms_logger(reading);
  resolve_record_steps(reading);
  resolve_lora(reading);
  resolve_fp8(reading);
}

}  // namespace cleave::config
