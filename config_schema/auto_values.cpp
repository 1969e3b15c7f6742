#include <fmt/core.h>

#include <cmath>
#include <string_view>

#include "config_schema/key_values.h"
#include "config_schema/reading.h"

namespace cleave::config {
namespace {

JsonValue number(double x) {
  JsonValue v;
  v.kind = JsonValue::Kind::number, v.number = x, v.text = fmt::format("{}", x);
  if (std::fabs(x) < 0x1p62 && x == std::floor(x))
    v.integer = int64_t(x), v.text = fmt::format("{}", *v.integer);
  return v;
}

JsonValue boolean(bool b) {
  JsonValue v;
  v.kind = JsonValue::Kind::boolean, v.boolean = b;
  return v;
}

JsonValue pair(double a, double b) {
  JsonValue v;
  v.kind = JsonValue::Kind::list, v.items = {number(a), number(b)};
  return v;
}

template <class T>
AutoAnswer from(const std::optional<T>& option, const char* what) {
  if (option) return {true, number(double(*option)), {}};
  return {false, std::nullopt, what};
}

AutoAnswer flag(const std::optional<bool>& option) { return {true, boolean(option.value_or(false)), {}}; }

const AutoAnswer kDefault{true, std::nullopt, {}};

AutoAnswer from_width(const Key& key, const ReadOptions& options, int stage) {
  if (!options.auto_values.hidden_size) return kDefault;
  const double h = double(*options.auto_values.hidden_size);
  if (key.path == "zero_optimization.reduce_bucket_size") return {true, number(h * h), {}};
  if (stage != 3) return kDefault;
  if (key.path == "zero_optimization.stage3_prefetch_bucket_size")
    return {true, number(double(int64_t(0.9 * h * h))), {}};
  return {true, number(10 * h), {}};
}

}  // namespace

namespace {

// Returns values that depend on the number of steps, which may be unknown without training.
AutoAnswer of_steps(const std::optional<int64_t>& steps, const ReadOptions& options, const char* what) {
  if (steps || !options.steps_may_be_open) return from(steps, what);
  return {.usable = true, .value = std::nullopt, .missing = what, .origin = {}, .open = true};
}

AutoAnswer value_of(const Key& key, const ReadOptions& options, int stage) {
  const AutoValues& a = options.auto_values;
  const std::string& p = key.path;
  if (p == "train_batch_size") return kDefault;
  if (p == "train_micro_batch_size_per_gpu")
    return a.micro_batch_size ? from(a.micro_batch_size, "") : kDefault;
  if (p == "gradient_accumulation_steps")
    return a.gradient_accumulation_steps ? from(a.gradient_accumulation_steps, "") : kDefault;
  if (p == "steps_per_print") return kDefault;
  if (p == "zero_optimization.stage")
    return {true, number(double(kStageOfAuto)), {}, "the values that Accelerate fills in"};
  if (p == "gradient_clipping") return from(a.max_grad_norm, "the largest gradient norm");
  if (p == "optimizer.params.lr") return from(a.lr, "the learning rate");
  if (p == "optimizer.params.weight_decay") return from(a.weight_decay, "the weight decay");
  if (p == "optimizer.params.eps") return from(a.eps, "Adam's epsilon");
  if (p == "optimizer.params.betas") {
    if (a.beta1 && a.beta2) return {true, pair(*a.beta1, *a.beta2), {}};
    return {false, std::nullopt, "Adam's two betas"};
  }
  if (p == "scheduler.params.warmup_min_lr") return {true, number(0), {}};
  if (p == "scheduler.params.warmup_max_lr") return from(a.lr, "the learning rate");
  if (p == "scheduler.params.total_num_steps")
    return of_steps(a.total_steps, options, "the number of training steps");
  if (p == "scheduler.params.warmup_num_steps")
    return of_steps(warmup_steps(a), options, "the number of warm-up steps");
  if (p == "fp16.enabled") return flag(a.fp16);
  if (p == "bf16.enabled") return flag(a.bf16);
  if (p == "zero_optimization.reduce_bucket_size" || p == "zero_optimization.stage3_prefetch_bucket_size" ||
      p == "zero_optimization.stage3_param_persistence_threshold")
    return from_width(key, options, stage);
  if (in_strict_section(p) || p.starts_with("pipeline.")) return kDefault;
  return {false, std::nullopt, ""};
}

}  // namespace

AutoAnswer answer_auto(const Key& key, const ReadOptions& options, int stage) {
  AutoAnswer answer = value_of(key, options, stage);
  if (answer.usable && answer.value && answer.origin.empty())
    answer.origin = origin_of_auto(key.path, options.auto_values);
  return answer;
}

}  // namespace cleave::config
