#include "app/run/recorded_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config_schema/summary.h"
#include "core/json.h"

namespace cleave::app {
namespace {

using nlohmann::json;

// Keys without effect on the values of a step.
bool is_output(std::string_view path) {
  constexpr std::string_view kSections[] = {
      "tensorboard",    "csv_monitor",         "wandb",        "comet",          "cleave.mlflow",
      "cleave.http",    "cleave.record_steps", "comms_logger", "flops_profiler", "checkpoint",
      "cleave.product", "steps_per_print",     "wall_clock",   "dump_state",     "memory_breakdown",
      "nebula",         "data_efficiency",     "aio.use_gds",  "autotuning",     "elasticity"};
  return std::ranges::any_of(kSections, [&](std::string_view s) { return path.starts_with(s); });
}

// Pointer of a path: "/zero_optimization/stage".
json::json_pointer pointer_to(std::string path) {
  std::ranges::replace(path, '.', '/');
  return json::json_pointer("/" + path);
}

json values_of(const config::DsConfig& config) {
  json values = json::object();
  for (const auto& [path, value] : config::compared_values(config))
    if (!is_output(path)) values[path] = value;
  return values;
}

}  // namespace

json recorded_config(const config::ReadResult& read, int world) {
  json keys = json::object();
  for (const config::Note& n : read.notes) {
    const std::string& path = n.key.empty() ? n.path : n.key;
    if (path.empty() || is_output(path) || n.origin == "default" || n.origin == "derived" ||
        !n.status.starts_with("honoured"))
      continue;
    const json value = json_or_nothing(n.value);
    keys[pointer_to(path)] = value.is_discarded() ? json(n.value) : value;
  }
  // The policy fit chose these layers for the memory of the recorded run.
  if (const auto& c = read.config.checkpointing; c.policy == config::CheckpointingPolicy::fit) {
    json& section = keys["activation_checkpointing"];
    section.erase("policy");
    if (!c.full.empty()) section["full_layers"] = fmt::format("{}", fmt::join(c.full, ","));
    if (!c.selective.empty()) section["selective_layers"] = fmt::format("{}", fmt::join(c.selective, ","));
  }
  return {{"world", world}, {"keys", std::move(keys)}, {"values", values_of(read.config)}};
}

config::DsConfig config_of_record(const json& recorded) {
  config::ReadOptions options;
  options.world_size = recorded.at("world");
  const config::ReadResult read =
      config::read_ds_config(recorded.at("keys").dump(), "configuration of the record", options);
  require(read.ok(), Exit::checkpoint, "configuration of the record: not accepted by this version: {}",
          config::format(read.problems));
  const json now = values_of(read.config);
  for (const auto& [path, value] : recorded.at("values").items())
    require(!now.contains(path) || now[path] == value || path.starts_with("activation_checkpointing"),
            Exit::checkpoint,
            "configuration of the record: {} has another value in this version (got {}, expected {}); replay "
            "it with the version that recorded it",
            path, now[path].dump(), value.dump());
  return read.config;
}

}  // namespace cleave::app
