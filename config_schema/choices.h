// Named choices of a ds_config, one table each. A new optimizer is a value and a row here, its
// kernel, and a class in optim/optimizer.cpp.
#pragma once
#include <cstdint>

#include "core/choice.h"

namespace cleave::config {

using cleave::name_of;  // in addition to the overloads here

// A type with its own arguments: key names, separated by blanks.
struct TypeRow {
  std::string_view name, arguments;
  constexpr bool has(std::string_view argument) const {
    for (size_t at = 0; (at = arguments.find(argument, at)) != std::string_view::npos; ++at) {
      const size_t end = at + argument.size();
      if ((at == 0 || arguments[at - 1] == ' ') && (end == arguments.size() || arguments[end] == ' '))
        return true;
    }
    return false;
  }
};

template <size_t n>
constexpr std::array<std::string_view, n> names_of_rows(const std::array<TypeRow, n>& rows) {
  std::array<std::string_view, n> names;
  for (size_t i = 0; i < n; ++i) names[i] = rows[i].name;
  return names;
}

enum class OptimizerType : uint8_t { adam, adamw, lamb, lion, adagrad, sgd };

// Keys of optimizer.params, including unsupported ones and those without effect.
inline constexpr auto kOptimizers = std::to_array<TypeRow>({
    {"Adam",
     "lr weight_decay betas eps bias_correction adam_w_mode torch_adam amsgrad fp32_optimizer_states "
     "set_grad_none maximize foreach fused differentiable capturable decoupled_weight_decay"},
    {"AdamW",
     "lr weight_decay betas eps bias_correction adam_w_mode torch_adam amsgrad fp32_optimizer_states "
     "set_grad_none maximize foreach fused differentiable capturable decoupled_weight_decay"},
    {"Lamb", "lr weight_decay betas eps bias_correction max_coeff min_coeff eps_inside_sqrt amsgrad"},
    {"Lion", "lr weight_decay betas fp32_optimizer_states set_grad_none"},
    {"Adagrad",
     "lr weight_decay eps lr_decay initial_accumulator_value amsgrad fp32_optimizer_states maximize foreach "
     "fused differentiable"},
    {"SGD", "lr weight_decay momentum dampening nesterov maximize foreach fused differentiable"},
});
constexpr auto choice_names(OptimizerType) { return names_of_rows(kOptimizers); }

// Learning-rate schedules: DeepSpeed's, then those of the Hugging Face Trainer for files without a
// schedule, which a file cannot name. `constant` is the schedule of a file without one.
enum class SchedulerType : uint8_t {
  constant,
  warmup,
  warmup_decay,
  warmup_cosine,
  one_cycle,
  range_test,
  trainer_linear,
  trainer_cosine,
  trainer_constant,
};

inline constexpr auto kSchedulers = std::to_array<TypeRow>({
    {"", ""},
    {"WarmupLR", "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type"},
    {"WarmupDecayLR", "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type total_num_steps"},
    {"WarmupCosineLR", "warmup_num_steps warmup_type warmup_min_ratio cos_min_ratio total_num_steps"},
    {"OneCycle",
     "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size "
     "cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom "
     "cycle_max_mom decay_mom_rate"},
    {"LRRangeTest",
     "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase"},
    {"linear", "warmup_num_steps total_num_steps"},
    {"cosine", "warmup_num_steps total_num_steps"},
    {"constant_with_warmup", "warmup_num_steps"},
});
constexpr auto choice_names(SchedulerType) { return names_of_rows(kSchedulers); }
// Number of schedules that a file can name, including `constant`, which is null in a file.
inline constexpr size_t kSchedulersInFiles = size_t(SchedulerType::trainer_linear);
constexpr bool is_trainers(SchedulerType type) { return type >= SchedulerType::trainer_linear; }

enum class WarmupType : uint8_t { log, linear };
constexpr auto choice_names(WarmupType) { return std::to_array<std::string_view>({"log", "linear"}); }

enum class OffloadDevice : uint8_t { none, cpu, nvme };
constexpr auto choice_names(OffloadDevice) {
  return std::to_array<std::string_view>({"none", "cpu", "nvme"});
}

// Device that updates optimizer state stored outside of the device.
enum class OffloadUpdate : uint8_t { automatic, host, device };
constexpr auto choice_names(OffloadUpdate) {
  return std::to_array<std::string_view>({"auto", "host", "device"});
}

// Save of a script whose ranks pass different tags: the first rank's tag counts, or an error.
enum class TagValidation : uint8_t { ignore, warn, fail };
constexpr auto choice_names(TagValidation) {
  return std::to_array<std::string_view>({"Ignore", "Warn", "Fail"});
}

enum class Switch : uint8_t { automatic, on, off };
constexpr auto choice_names(Switch) { return std::to_array<std::string_view>({"auto", "on", "off"}); }

// Average of a step's losses: over all targets equally, or over micro-batches, each with the mean
// over its own targets.
enum class LossAverage : uint8_t { targets, micro_batches };
constexpr auto choice_names(LossAverage) {
  return std::to_array<std::string_view>({"targets", "micro_batches"});
}

// Step with a loss or gradients that are not finite, in fp32 and bf16.
enum class NonFinite : uint8_t { stop, skip, roll_back };
constexpr auto choice_names(NonFinite) {
  return std::to_array<std::string_view>({"stop", "skip", "roll_back"});
}

// Type of the head's logits: fp32 or the model's.
enum class LogitsType : uint8_t { automatic, fp32, model };
constexpr auto choice_names(LogitsType) { return std::to_array<std::string_view>({"auto", "fp32", "model"}); }

// Reaction to copies of the same weights that differ between ranks.
enum class ReplicaPolicy : uint8_t { stop, repair, warn };
constexpr auto choice_names(ReplicaPolicy) {
  return std::to_array<std::string_view>({"stop", "repair", "warn"});
}

enum class CheckpointingPolicy : uint8_t { full, selective, fit };
constexpr auto choice_names(CheckpointingPolicy) {
  return std::to_array<std::string_view>({"full", "selective", "fit"});
}

enum class Precision : uint8_t { fp32, fp16, bf16 };
constexpr auto choice_names(Precision) { return std::to_array<std::string_view>({"fp32", "fp16", "bf16"}); }

}  // namespace cleave::config
