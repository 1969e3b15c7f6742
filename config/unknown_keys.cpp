#include "config/unknown_keys.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <span>

#include "config/key_values.h"
#include "config/nearest_key.h"

namespace cleave::config {
namespace {

using Kind = JsonValue::Kind;

// Names that are no keys, by the section they stand in. `key` is the one that is meant; without one, `says`
// is all there is to say.
struct Meant {
  std::string_view section, name, key, says = {};
  bool warning = false;
};

constexpr std::string_view kNoScale = "bf16 has the range of fp32 and needs no loss scale; remove it";
constexpr std::string_view kBatch =
    "samples of a step over all ranks are train_batch_size, those that a rank computes at a time "
    "train_micro_batch_size_per_gpu";
constexpr std::string_view kLength = "how long a training is, its command line says: --steps or --epochs";
constexpr std::string_view kOldThreads =
    "an old name of intra_op_parallelism, which neither DeepSpeed nor this program reads";

constexpr Meant kMeant[] = {
    {"", "accumulate_grad_batches", "gradient_accumulation_steps"},
    {"", "accumulation_steps", "gradient_accumulation_steps"},
    {"", "batch_size", "", kBatch},
    {"", "bf16_enabled", "bf16.enabled"},
    {"", "clip_grad", "gradient_clipping"},
    {"", "clip_grad_norm", "gradient_clipping"},
    {"", "eigenvalue", "", "it steers quantization while training, which is not built; remove it"},
    {"", "epochs", "", kLength, true},
    {"", "float16", "fp16"},
    {"", "fp16_enabled", "fp16.enabled"},
    {"", "global_batch_size", "train_batch_size"},
    {"", "grad_accum_steps", "gradient_accumulation_steps"},
    {"", "grad_accumulation_steps", "gradient_accumulation_steps"},
    {"", "grad_clip", "gradient_clipping"},
    {"", "gradient_checkpointing", "activation_checkpointing.interval"},
    {"", "gradient_clip", "gradient_clipping"},
    {"", "gradient_clip_val", "gradient_clipping"},
    {"", "fp8", "cleave.fp8"},
    {"", "learning_rate", "optimizer.params.lr"},
    {"", "max_grad_norm", "gradient_clipping"},
    {"", "max_steps", "", kLength, true},
    {"", "micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "micro_batch_size_per_device", "train_micro_batch_size_per_gpu"},
    {"", "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu"},
    {"", "mixed_precision", "", "the model's type is chosen by fp16.enabled or bf16.enabled"},
    {"", "num_train_epochs", "", kLength, true},
    {"", "offload", "",
     "the sections are zero_optimization.offload_optimizer and zero_optimization.offload_param"},
    {"", "per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"", "pipeline_parallel_size", "pipeline.stages"},
    {"", "pp_size", "pipeline.stages"},
    {"", "precision", "", "the model's type is chosen by fp16.enabled or bf16.enabled"},
    {"", "sequence_parallel", "sequence_parallel_size"},
    {"", "tensor_parallel_size", "tensor_parallel.autotp_size"},
    {"", "tp_size", "tensor_parallel.autotp_size"},
    {"", "weight_decay", "optimizer.params.weight_decay"},
    {"", "zero_allow_untrained", "zero_allow_untested_optimizer"},
    {"", "zero_stage", "zero_optimization.stage"},
    {"aio", "num_threads", "", kOldThreads, true},
    {"aio", "thread_count", "", kOldThreads, true},
    {"bf16", "auto_cast", "", kNoScale},
    {"bf16", "consecutive_hysteresis", "", kNoScale},
    {"bf16", "hysteresis", "", kNoScale},
    {"bf16", "initial_scale_power", "", kNoScale},
    {"bf16", "loss_scale", "", kNoScale},
    {"bf16", "loss_scale_window", "", kNoScale},
    {"bf16", "min_loss_scale", "", kNoScale},
    {"cleave.lora", "lora_alpha", "cleave.lora.alpha"},
    {"cleave.lora", "lora_dropout", "cleave.lora.dropout"},
    {"cleave.lora", "r", "cleave.lora.rank"},
    {"cleave.lora", "target_modules", "cleave.lora.targets"},
    {"optimizer.params", "beta1", "optimizer.params.betas"},
    {"optimizer.params", "beta2", "optimizer.params.betas"},
    {"optimizer.params", "epsilon", "optimizer.params.eps"},
    {"optimizer.params", "learning_rate", "optimizer.params.lr"},
    {"scheduler.params", "max_steps", "scheduler.params.total_num_steps"},
    {"scheduler.params", "num_training_steps", "scheduler.params.total_num_steps"},
    {"scheduler.params", "num_warmup_steps", "scheduler.params.warmup_num_steps"},
    {"scheduler.params", "total_steps", "scheduler.params.total_num_steps"},
    {"scheduler.params", "warmup_steps", "scheduler.params.warmup_num_steps"},
    {"zero_optimization", "offload", "", "the sections are offload_optimizer and offload_param"},
    {"zero_optimization", "offload_optim", "zero_optimization.offload_optimizer"},
    {"zero_optimization", "offload_parameters", "zero_optimization.offload_param"},
    {"zero_optimization", "offload_params", "zero_optimization.offload_param"},
    {"zero_optimization", "param_offload", "zero_optimization.offload_param"},
    {"zero_optimization", "zero_stage", "zero_optimization.stage"},
};

// Words of names that ask for another training than that of all of a model's weights as they are.
constexpr std::string_view kNotBuilt[] = {
    "qlora",   "dora",         "prompt", "quantization", "quantize", "quant", "bnb",    "4bit",   "8bit",
    "int4",    "int8",         "nf4",    "gptq",         "awq",      "moe",   "ema",    "freeze", "frozen",
    "distill", "distillation", "dpo",    "grpo",         "ppo",      "rlhf",  "reward", "pruning"};
// And of those that ask for adapters of low rank.
constexpr std::string_view kAdapters[] = {"peft", "lora", "adapter", "adapters"};

// Whether a value of a key that nobody knows asks for nothing.
bool asks_for_nothing(const JsonValue& v) {
  switch (v.kind) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return !v.boolean;
    case Kind::number:
      return v.number == 0;
    case Kind::text:
      return v.text.empty() || v.text == "none";
    case Kind::list:
      return v.items.empty();
    case Kind::object:
      return std::all_of(v.members.begin(), v.members.end(),
                         [&](const JsonMember& m) { return m.key == "_"; }) ||
             std::any_of(v.members.begin(), v.members.end(),
                         [](const JsonMember& m) { return m.key == "enabled" && asks_for_nothing(m.value); });
  }
  return false;
}

bool speaks_of(std::span<const std::string_view> words, std::string_view name) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find_first_of("_-. ", begin), name.size());
    if (std::find(words.begin(), words.end(), name.substr(begin, end - begin)) != words.end()) return true;
    begin = end + 1;
  }
  return false;
}

std::string join(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

// {"a": {"b": ...}} for a.b.
std::string nested(std::string_view path) {
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return fmt::format("{{\"{}\": ...}}", path);
  return fmt::format("{{\"{}\": {}}}", path.substr(0, dot), nested(path.substr(dot + 1)));
}

bool is_section(const Reading& r, const std::string& path) {
  const auto it = r.index.lower_bound(path + ".");
  return it != r.index.end() && it->first.starts_with(path + ".");
}

// Whether a member of the object is a key of the section, or a slip of one.
bool belongs_in(const Reading& r, const std::string& section, const JsonValue& object) {
  return std::any_of(object.members.begin(), object.members.end(), [&](const JsonMember& m) {
    const Suggestion near = nearest_key(section, m.key, r.paths);
    return r.find(join(section, m.key)) || (!near.path.empty() && !near.other_level);
  });
}

// The key of which the name is a slip, or that stands in another section and is built.
Suggestion near_key(const Reading& r, const std::string& section, const JsonMember& m) {
  const bool object = m.value.kind == Kind::object;
  std::vector<std::string> paths;
  for (const std::string& path : r.paths) {
    const Key* key = r.find(path);
    const size_t dot = path.rfind('.');
    const bool here = (dot == std::string::npos ? "" : path.substr(0, dot)) == section;
    const bool built = key && (key->status == Status::honoured || key->status == Status::section);
    if ((here || built) && (!object || is_section(r, path) || !key)) paths.push_back(path);
  }
  const Suggestion near = nearest_key(section, m.key, paths);
  const bool foreign = object && section.empty() && !near.path.empty() && !belongs_in(r, near.path, m.value);
  return foreign ? Suggestion{} : near;
}

UnknownKey meant(const std::string& section, const std::string& key) {
  const size_t dot = key.rfind('.');
  const bool here = (dot == std::string::npos ? "" : key.substr(0, dot)) == section;
  return {false, here ? fmt::format("unknown key; did you mean \"{}\"?", key.substr(dot + 1))
                      : fmt::format("unknown key; did you mean {}?", key)};
}

}  // namespace

UnknownKey judge_unknown(const Reading& r, const std::string& section, const JsonMember& m) {
  for (const Meant& row : kMeant) {
    if (row.section != section || row.name != m.key) continue;
    if (row.key.empty())
      return {row.warning, row.warning ? std::string(row.says) : fmt::format("unknown key; {}", row.says)};
    return meant(section, std::string(row.key));
  }
  if (const std::string path = join(section, m.key); m.key.find('.') != std::string::npos && r.find(path))
    return {false, fmt::format("a dot in a name opens no section; write {}", nested(path))};
  if (const Suggestion near = near_key(r, section, m); !near.path.empty()) return meant(section, near.path);
  if (!section.empty()) return {false, fmt::format("unknown key in {}", section)};
  if (speaks_of(kAdapters, m.key) && !asks_for_nothing(m.value))
    return {false,
            R"(unknown key; adapters are asked for by {"cleave": {"lora": {"rank": 8, "targets": [...]}}})"};
  if (speaks_of(kNotBuilt, m.key) && !asks_for_nothing(m.value))
    return {false,
            "is not built: all of a model's weights are trained, as they are; remove it if that is meant"};
  return {true, "unknown key, which nothing reads"};
}

}  // namespace cleave::config
