#include "config_schema/summary.h"

#include <fmt/core.h>

#include <algorithm>

#include "config_schema/key_values.h"

namespace cleave::config {
namespace {

const Note* note_of(const ReadResult& r, std::string_view path) {
  const auto it = std::find_if(r.notes.begin(), r.notes.end(),
                               [&](const Note& n) { return (n.key.empty() ? n.path : n.key) == path; });
  return it == r.notes.end() ? nullptr : &*it;
}

// A default of a section that the file has is DeepSpeed's; without the section it is this program's.
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

std::string optimizer_line(const ReadResult& r) {
  const OptimizerConfig& o = r.config.optimizer;
  std::string line = fmt::format("optimizer: {} ({})", o.type, origin_of(r, "optimizer.type"));
  const auto add = [&](std::string_view name, const std::string& value, const char* path) {
    line += fmt::format(", {} {} ({})", name, value, origin_of(r, path));
  };
  add("lr", fmt::format("{}", o.lr), "optimizer.params.lr");
  if (o.has_betas()) add("betas", fmt::format("{} {}", o.beta1, o.beta2), "optimizer.params.betas");
  add("weight_decay", fmt::format("{}", o.weight_decay), "optimizer.params.weight_decay");
  return line;
}

// Whether each rank may have its own value: paths of what rank 0 writes, and what belongs to a host's disks.
bool is_of_rank(std::string_view path) {
  constexpr std::string_view kSections[] = {"aio.", "tensorboard.", "csv_monitor."};
  return path == "flops_profiler.output_file" || path.ends_with(".nvme_path") ||
         std::ranges::any_of(kSections, [&](std::string_view section) { return path.starts_with(section); });
}

std::string steps(int64_t n) { return n > 0 ? fmt::format("step {}", n) : "the last step"; }

std::string schedule_line(const ReadResult& r) {
  const SchedulerConfig& s = r.config.scheduler;
  const std::string origin = origin_of(r, "scheduler.type");
  if (s.type == SchedulerType::constant) return fmt::format("schedule: constant ({})", origin);
  std::string line = fmt::format("schedule: {} ({})", s.type, origin);
  const bool trainers = is_trainers(s.type);
  const TypeRow& row = kSchedulers[size_t(s.type)];
  const auto add = [&](std::string_view what, const std::string& path) {
    const std::string from = trainers ? "" : " (" + origin_of(r, "scheduler.params." + path) + ")";
    line += fmt::format(", {}{}", what, from);
  };
  if (row.has("warmup_num_steps"))
    add(fmt::format("warm-up of {} steps", s.warmup_num_steps), "warmup_num_steps");
  if (row.has("warmup_max_lr") && s.warmup_max_lr)
    add(fmt::format("peak {}", *s.warmup_max_lr), "warmup_max_lr");
  if (row.has("total_num_steps")) add("ends at " + steps(s.total_num_steps), "total_num_steps");
  if (s.type == SchedulerType::one_cycle) add(fmt::format("up to {}", s.cycle_max_lr), "cycle_max_lr");
  return line;
}

}  // namespace

std::vector<std::string> update_lines(const ReadResult& result) {
  return {optimizer_line(result), schedule_line(result)};
}

std::string differences_line(const ReadResult& result) {
  DsConfig defaults;
  std::string line;
  for (const Key& key : describe(defaults)) {
    const Note* n = note_of(result, key.path);
    const bool own_line = key.path.starts_with("optimizer.") || key.path.starts_with("scheduler.") ||
                          key.path.find("batch_size") != std::string::npos ||
                          key.path == "gradient_accumulation_steps";
    if (!n || own_line || key.status != Status::honoured || n->status != "honoured") continue;
    if (n->origin == "default" || same_value(read_json_text(n->value).root, key.default_text)) continue;
    line += fmt::format("{}{} = {}", line.empty() ? "config: " : ", ", n->path, n->value);
  }
  return line;
}

std::vector<std::pair<std::string, std::string>> compared_values(DsConfig config) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const Key& key : describe(config))
    if (key.status == Status::honoured && key.target.index() != 0 && !is_of_rank(key.path))
      values.emplace_back(key.path, text_of(key.target));
  values.emplace_back("gradient_allreduce_op", config.gradient_sum ? "\"sum\"" : "\"mean\"");
  return values;
}

}  // namespace cleave::config
