#include <fmt/ranges.h>

#include <charconv>

#include "config_schema/reading.h"

namespace cleave::config {
namespace {

// Reads a list like "2,1,0,0"; empty if it is not one.
std::vector<int64_t> read_numbers(const std::string& text) {
  std::vector<int64_t> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t number = -1;
    const auto [last, problem] = std::from_chars(text.data() + begin, text.data() + end, number);
    if (problem != std::errc() || last != text.data() + end || number < 0) return {};
    out.push_back(number), begin = end + 1;
  }
  return out;
}

void resolve_layers_of_ranks(Reading& r) {
  CheckpointingConfig& c = r.result.config.checkpointing;
  const std::string section = "activation_checkpointing.";
  const auto ranks = size_t(std::max(1, r.result.config.pipeline.stages));
  const bool listed = !c.full_layers.empty() || !c.selective_layers.empty();
  const bool other = c.interval > 0 || c.number > 0 || c.to_host || c.partition;
  if (other && (listed || c.policy == CheckpointingPolicy::fit))
    for (const char* key :
         {"activation_checkpointing.interval", "activation_checkpointing.number_checkpoints",
          "activation_checkpointing.cpu_checkpointing", "activation_checkpointing.partition_activations",
          "pipeline.activation_checkpoint_interval"})
      if (r.entry(key))
        r.error_at(
            key, "cannot be combined with the policy \"fit\", full_layers and selective_layers; remove one");
  if (!listed) return;
  if (c.lean)
    r.error_at(section + "policy",
               "\"selective\" is for all layers; remove it, or full_layers and selective_layers");
  const auto read = [&](const char* key, const std::string& text) {
    if (text.empty()) return std::vector<int64_t>(ranks, 0);
    std::vector<int64_t> numbers = read_numbers(text);
    if (numbers.size() != ranks) {
      r.error_at(section + key, fmt::format("expected one number of layers per pipeline rank, such as \"{}\"",
                                            fmt::join(std::vector<int>(ranks, 1), ",")));
      numbers.assign(ranks, 0);
    }
    return numbers;
  };
  c.full = read("full_layers", c.full_layers), c.selective = read("selective_layers", c.selective_layers);
}

}  // namespace

void resolve_checkpointing(Reading& r) {
  CheckpointingConfig& c = r.result.config.checkpointing;
  const std::string section = "activation_checkpointing.";
  const int64_t other = r.result.config.pipeline.checkpoint_interval;
  if (c.interval > 0 && other > 0 && c.interval != other)
    r.error_at(section + "interval",
               fmt::format("{} differs from pipeline.activation_checkpoint_interval {}; remove one",
                           c.interval, other));
  if (c.interval == 0) c.interval = other;
  if (c.interval > 0 && c.number > 0)
    r.error_at(section + "number_checkpoints",
               fmt::format("an interval of {} layers is already set; remove one", c.interval));
  c.lean = c.policy == CheckpointingPolicy::selective;
  if (c.lean && (c.interval > 0 || c.number > 0 || c.to_host || c.partition))
    r.error_at(section + "policy",
               "\"selective\" keeps no inputs of layer groups; remove it, or the interval, "
               "number_checkpoints, cpu_checkpointing and partition_activations");
  resolve_layers_of_ranks(r);
  if (c.by_rank() || c.policy == CheckpointingPolicy::fit) return;
  bool asked = c.to_host || c.partition;
  for (const char* key : {"contiguous_memory_optimization", "synchronize_checkpoint_boundary"})
    asked = asked || r.boolean(section + key, false);
  if (c.lean || c.interval > 0 || (!asked && c.number == 0)) return;
  if (r.entry(section + "interval")) {
    r.warning_at(section + "interval", "0 turns recomputation off, but other keys of the section turn it on");
    c.number = 0, c.to_host = c.partition = false;
  } else if (c.number == 0) {
    c.interval = 1, r.derived[section + "interval"] = "derived";
  }
}

}  // namespace cleave::config
