#include "plan/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config_schema/ds_config.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/units.h"

namespace cleave::plan {

const std::vector<DeviceModel>& device_models() {
  constexpr double T = 1e12, G = 1e9, GiB = 1024.0 * 1024 * 1024;
  static const std::vector<DeviceModel> models = {
      {"h200", "NVIDIA H200 SXM, 8 a node", 520 * T, 12, 4.2 * T, 55 * G, 365 * G, 48 * G, 40 * G, 3 * G,
       138 * GiB, 8},
      {"h100", "NVIDIA H100 SXM 80 GB, 8 a node", 470 * T, 12, 2.9 * T, 55 * G, 365 * G, 48 * G, 40 * G,
       3 * G, 78 * GiB, 8},
      {"a100-80", "NVIDIA A100 SXM 80 GB, 8 a node", 175 * T, 14, 1.75 * T, 24 * G, 230 * G, 24 * G, 25 * G,
       2 * G, 78 * GiB, 8},
      {"a100-40", "NVIDIA A100 SXM 40 GB, 8 a node", 175 * T, 14, 1.35 * T, 24 * G, 230 * G, 24 * G, 25 * G,
       2 * G, 38 * GiB, 8},
      {"l40s", "NVIDIA L40S, 8 a node without NVLink", 170 * T, 4, 0.75 * T, 24 * G, 20 * G, 12 * G, 25 * G,
       2 * G, 44 * GiB, 8},
  };
  return models;
}

namespace {

struct Rate {
  const char* key;
  double DeviceModel::*value;
};
constexpr Rate kRates[] = {{"training", &DeviceModel::training},
                           {"slowdown_fp32", &DeviceModel::slowdown_fp32},
                           {"memory", &DeviceModel::memory},
                           {"host_link", &DeviceModel::host_link},
                           {"node_link", &DeviceModel::node_link},
                           {"network", &DeviceModel::network},
                           {"host_memory", &DeviceModel::host_memory},
                           {"disk", &DeviceModel::disk},
                           {"memory_bytes", &DeviceModel::memory_bytes}};

DeviceModel read_device_model(const std::string& path) {
  constexpr int64_t kLargest = 1 << 20;  // bytes
  const std::string text = InputFile(path, Exit::usage).text(kLargest);
  nlohmann::json rates = nlohmann::json::parse(text, nullptr, false, /*ignore_comments=*/true);
  if (rates.is_discarded()) parse_json(text, path, Exit::usage);  // throws with position and reason
  require(rates.is_object(), Exit::usage, "{}: expected a JSON object with the rates of a device", path);
  DeviceModel d;
  d.name = path, d.says = "measured";
  std::vector<std::string> wrong;
  auto take = [&](const char* key, auto& value) {
    const auto at = rates.find(key);
    if (at == rates.end() || !at->is_number() || at->template get<double>() <= 0)
      wrong.push_back(fmt::format("{}: expected a number above 0, got {}", key,
                                  at == rates.end() ? "nothing" : at->dump()));
    else
      value = at->template get<std::remove_reference_t<decltype(value)>>();
    rates.erase(key);
  };
  for (const Rate& r : kRates) take(r.key, d.*r.value);
  take("per_node", d.per_node);
  for (const auto& [key, value] : rates.items()) wrong.push_back(fmt::format("{}: unknown", key));
  require(wrong.empty(), Exit::usage,
          "{}: {} (rates are bytes per second and training FLOP/s; slowdown_fp32 is the slowdown of fp32 "
          "training)",
          path, fmt::join(wrong, "; "));
  return d;
}

}  // namespace

DeviceModel device_model(const std::string& name) {
  if (name.ends_with(".json")) return read_device_model(name);
  std::vector<std::string> names;
  for (const DeviceModel& m : device_models()) {
    if (m.name == name) return m;
    names.push_back(m.name);
  }
  fail(Exit::usage, "--device {}: expected one of {}, or a .json file with measured rates", name,
       fmt::join(names, ", "));
}

namespace {

// Share of a GPU's multiprocessors that copy and add while a message is under way (NCCL: 16 of 132).
constexpr double kTakenByMessages = 0.12;

// Transfer time of parameters and gradients off the device: in each micro-batch, parameters arrive for the
// forward and the backward, and gradients leave.
double moves_of(const RankPlan& rank, const config::DsConfig& config, const DeviceModel& d) {
  auto offloaded = [&](Category c) {
    return double(rank.memory.at(MemoryKind::pinned, c) + rank.memory.at(MemoryKind::host, c));
  };
  const double read = 2 * double(rank.memory.at(MemoryKind::disk, Category::weights)) / d.disk;
  const double moved = (2 * offloaded(Category::weights) + offloaded(Category::gradients)) / d.host_link;
  return double(config.gradient_accumulation_steps) * (moved + read);
}

// Time of offloaded state on the configured side, or on the faster one. The host's kernels read and write it
// in host memory; the link transfers the same amount each way at the same time.
struct OffloadedUpdate {
  double seconds = 0;
  bool streams = false;
};
OffloadedUpdate offloaded_update(const zero::UpdateBytes& bytes, config::OffloadUpdate where,
                                 const DeviceModel& d) {
  const zero::UpdateTimes t = zero::update_times(
      bytes, {.host = d.host_memory / 2, .to_device = d.host_link, .to_host = d.host_link});
  const bool streams = where == config::OffloadUpdate::device ||
                       (where == config::OffloadUpdate::automatic && t.device < t.host);
  return {streams ? t.device : t.host, streams};
}

// The optimizer reads and writes its state once; on disk this overlaps the update.
double update_of(const MemoryTable& memory, double offloaded, const DeviceModel& d) {
  auto state = [&](MemoryKind k) {
    return double(memory.at(k, Category::master) + memory.at(k, Category::optimizer_state));
  };
  return 2 * state(MemoryKind::device) / d.memory + std::max(offloaded, 2 * state(MemoryKind::disk) / d.disk);
}

}  // namespace

namespace {

std::vector<const RankWork*> enqueued_of(const JobPlan& plan) {
  std::vector<const RankWork*> out;
  for (const RankPlan& r : plan.ranks)
    if (r.enqueued) out.push_back(r.enqueued.get());
  CHECK(int(out.size()) == plan.mesh.pipe, "a plan of {} stages has the work of {}", plan.mesh.pipe,
        out.size());
  return out;
}

// Computation, idle time and messages of a step.
void replay_step(StepTime& time, const JobPlan& plan, const DeviceModel& d, double rate) {
  const std::vector<const RankWork*> stages = enqueued_of(plan);
  ReplayRates rates{
      .flops = rate, .memory = d.memory, .node_link = d.node_link, .network = d.network, .messages = false};
  // The rate counts the FLOPs of the model; a backward of attention launches more.
  const double launched = replay(stages, rates).launched;
  if (launched > 0) rates.flops *= launched / (plan.flops * plan.mesh.pipe / plan.mesh.size());
  const Replayed alone = replay(stages, rates);
  rates.messages = true;
  const Replayed whole = replay(stages, rates);
  time.compute = alone.compute, time.waiting = std::max(0.0, alone.step - alone.compute);
  const double exposed = std::max(0.0, whole.step - alone.step);
  time.exchange = exposed + kTakenByMessages * std::max(0.0, whole.messages - exposed);
}

}  // namespace

StepTime predict(const config::DsConfig& config, const JobPlan& plan, const DeviceModel& device) {
  StepTime time{.device = device.name, .says = device.says};
  replay_step(time, plan, device,
              device.training / (config.precision == config::Precision::fp32 ? device.slowdown_fp32 : 1));
  double moves = 0;
  for (const RankPlan& r : plan.ranks) {
    moves = std::max(moves, moves_of(r, config, device));
    const OffloadedUpdate offloaded = offloaded_update(r.update, config.offload_update, device);
    time.update = std::max(time.update, update_of(r.memory, offloaded.seconds, device));
    time.streams = time.streams || offloaded.streams;
  }
  // Copies take no multiprocessors.
  time.exchange += config.zero.overlap_comm ? std::max(0.0, moves - time.compute) : moves;
  return time;
}

std::string format(const StepTime& t) {
  return fmt::format(
      "predicted on {} ({}), not exact: {:.4g} s a step = compute {:.3g} + pipeline idle {:.3g} + "
      "communication {:.3g} + update {:.3g}{}\n",
      t.device, t.says, t.total(), t.compute, t.waiting, t.exchange, t.update,
      t.streams ? " (offloaded state streams through the device)" : "");
}

std::string to_json(const JobPlan& plan, const StepTime& t) {
  nlohmann::json out = nlohmann::json::parse(to_json(plan));
  out["predicted"] = {{"device", t.device},           {"exact", false},
                      {"step_s", t.total()},          {"compute_s", t.compute},
                      {"pipeline_idle_s", t.waiting}, {"communication_s", t.exchange},
                      {"update_s", t.update},         {"state_streams", t.streams}};
  return out.dump(2);
}

}  // namespace cleave::plan
