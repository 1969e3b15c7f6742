#include "config_schema/summary.h"

#include <fmt/core.h>

#include <algorithm>

#include "config_schema/key_values.h"
#include "core/secrets.h"

namespace cleave::config {
namespace {

const Note* note_of(const ReadResult& r, std::string_view path) {
  const auto it = std::find_if(r.notes.begin(), r.notes.end(),
                               [&](const Note& n) { return (n.key.empty() ? n.path : n.key) == path; });
  return it == r.notes.end() ? nullptr : &*it;
}

// Defaults in a section of the file are DeepSpeed's; without the section they are this program's.
std::string origin_of(const ReadResult& r, const std::string& path) {
  const Note* n = note_of(r, path);
  if (!n || n->origin == "default") {
    const Note* type = note_of(r, path.substr(0, path.find('.')) + ".type");
    return type && type->origin == "user" ? "DeepSpeed's default" : "default";
  }
  if (n->origin == "user") return "file";
  constexpr std::string_view kAuto = "auto, ";
  return n->origin.starts_with(kAuto) ? n->origin.substr(kAuto.size()) : n->origin;
}

struct ValueFrom {
  std::string value, origin;  // an empty origin is not shown
};

std::string joined(const std::vector<ValueFrom>& values) {
  const bool alike =
      std::ranges::all_of(values, [&](const ValueFrom& v) { return v.origin == values.front().origin; });
  std::string line;
  for (const ValueFrom& v : values)
    line += (line.empty() ? "" : ", ") + v.value + (alike || v.origin.empty() ? "" : " (" + v.origin + ")");
  return alike ? fmt::format("{} ({})", line, values.front().origin) : line;
}

std::string optimizer_value(const ReadResult& r) {
  const OptimizerConfig& o = r.config.optimizer;
  std::vector<ValueFrom> values{{std::string(name_of(o.type)), origin_of(r, "optimizer.type")},
                                {fmt::format("lr {}", o.lr), origin_of(r, "optimizer.params.lr")}};
  if (o.has_betas())
    values.push_back({fmt::format("betas {} {}", o.beta1, o.beta2), origin_of(r, "optimizer.params.betas")});
  values.push_back(
      {fmt::format("weight_decay {}", o.weight_decay), origin_of(r, "optimizer.params.weight_decay")});
  return joined(values);
}

// Returns true for values that may differ between ranks: output paths of rank 0, and settings of a
// host's disks.
bool is_of_rank(std::string_view path) {
  constexpr std::string_view kSections[] = {"aio.", "tensorboard.", "csv_monitor.", "wandb.",
                                            "cleave.mlflow."};
  return path == "flops_profiler.output_file" || path.ends_with(".nvme_path") ||
         std::ranges::any_of(kSections, [&](std::string_view section) { return path.starts_with(section); });
}

// Returns true for keys in the lines batch, optimizer and schedule.
bool has_own_line(std::string_view path) {
  return path.starts_with("optimizer.") || path.starts_with("scheduler.") ||
         path.find("batch_size") != std::string_view::npos || path == "gradient_accumulation_steps";
}

std::string steps(int64_t n) { return n > 0 ? fmt::format("step {}", n) : "the last step"; }

std::string schedule_value(const ReadResult& r) {
  const SchedulerConfig& s = r.config.scheduler;
  const std::string origin = origin_of(r, "scheduler.type");
  if (s.type == SchedulerType::constant) return fmt::format("constant ({})", origin);
  std::vector<ValueFrom> values{{std::string(name_of(s.type)), origin}};
  const bool trainers = is_trainers(s.type);
  const TypeRow& row = kSchedulers[size_t(s.type)];
  const auto add = [&](const std::string& value, const std::string& path) {
    values.push_back({value, trainers ? "" : origin_of(r, "scheduler.params." + path)});
  };
  if (row.has("warmup_num_steps"))
    add(fmt::format("warm-up of {} steps", s.warmup_num_steps), "warmup_num_steps");
  if (row.has("warmup_max_lr") && s.warmup_max_lr)
    add(fmt::format("peak {}", *s.warmup_max_lr), "warmup_max_lr");
  if (row.has("total_num_steps")) add("ends at " + steps(s.total_num_steps), "total_num_steps");
  if (s.type == SchedulerType::one_cycle) add(fmt::format("up to {}", s.cycle_max_lr), "cycle_max_lr");
  return joined(values);
}

bool decides_training(std::string_view path) {
  constexpr std::string_view kKeys[] = {"train_batch_size",       "gradient_clipping", "fp16.enabled",
                                        "bf16.enabled",           "fp16.loss_scale",   "cleave.loss_average",
                                        "cleave.weight_decay_on", "cleave.freeze",     "cleave.exact_sums",
                                        "cleave.exact_sums_grid", "cleave.fp8.scaling"};
  constexpr std::string_view kSections[] = {"optimizer.", "scheduler."};
  return std::ranges::find(kKeys, path) != std::end(kKeys) ||
         std::ranges::any_of(kSections, [&](std::string_view section) { return path.starts_with(section); });
}

// Optimizers and schedules read the parameters of their own type.
bool is_read(const Key& key, const DsConfig& config) {
  const std::string_view type =
      key.path.starts_with("optimizer.") ? name_of(config.optimizer.type) : name_of(config.scheduler.type);
  return key.inert.empty() &&
         (key.only_for.empty() || std::ranges::find(key.only_for, type) != key.only_for.end());
}

}  // namespace

std::vector<NamedValue> update_lines(const ReadResult& result) {
  return {{"optimizer", optimizer_value(result)}, {"schedule", schedule_value(result)}};
}

std::string differences(const ReadResult& result) {
  DsConfig defaults;
  std::string line;
  for (const Key& key : describe(defaults)) {
    const Note* n = note_of(result, key.path);
    if (!n || has_own_line(key.path) || key.status != Status::honoured || n->status != "honoured") continue;
    if (n->origin == "default" || same_value(read_json_text(n->value).root, key.default_text)) continue;
    line += fmt::format("{}{} = {}", line.empty() ? "" : ", ", n->path, without_secrets(n->value));
  }
  return line;
}

std::string batch_value(const DsConfig& c) {
  const int64_t samples = c.train_micro_batch_size_per_gpu, micros = c.gradient_accumulation_steps,
                ranks = c.train_batch_size / (samples * micros);
  return fmt::format("{} = {} sample{} x {} micro-batch{} x {} data-parallel rank{}", c.train_batch_size,
                     samples, samples == 1 ? "" : "s", micros, micros == 1 ? "" : "es", ranks,
                     ranks == 1 ? "" : "s");
}

std::string decided(const ReadResult& result) {
  std::string line;
  for (const Note& n : result.notes) {
    if (n.status != "honoured" || n.origin == "user" || n.origin == "default" || has_own_line(n.path))
      continue;
    line +=
        fmt::format("{}{} = {} ({})", line.empty() ? "" : ", ", n.path, without_secrets(n.value), n.origin);
  }
  return line;
}

std::vector<std::string> unusual(const ReadResult& result) {
  std::vector<std::string> lines;
  for (const Note& n : result.notes)
    if (!n.path.empty() && n.status != "honoured" && n.origin != "default")
      lines.push_back(fmt::format("{} = {}: {}: {}", n.path, without_secrets(n.value), n.status, n.meaning));
  return lines;
}

std::vector<std::pair<std::string, std::string>> compared_values(DsConfig config) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const Key& key : describe(config))
    if (key.status == Status::honoured && key.target.index() != 0 && !is_of_rank(key.path))
      values.emplace_back(key.path, text_of(key.target));
  values.emplace_back("gradient_allreduce_op", config.gradient_sum ? "\"sum\"" : "\"mean\"");
  return values;
}

TrainingValues training_values(DsConfig config) {
  TrainingValues values;
  for (const Key& key : describe(config))
    if (key.status == Status::honoured && key.target.index() != 0 && decides_training(key.path) &&
        is_read(key, config))
      values[key.path] = text_of(key.target);
  values["gradient_allreduce_op"] = config.gradient_sum ? "\"sum\"" : "\"mean\"";
  return values;
}

std::vector<std::string> differing_values(const TrainingValues& saved, const TrainingValues& now) {
  std::vector<std::string> differences;
  for (const auto& [path, value] : now)
    if (const auto was = saved.find(path); was != saved.end() && was->second != value)
      differences.push_back(
          fmt::format("{} is {} now and was {} in the checkpoint", path, value, was->second));
  return differences;
}

}  // namespace cleave::config
