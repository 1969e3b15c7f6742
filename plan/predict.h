// How long a step would take, from counted work and a device's rates: a roofline for choosing between
// layouts. It is a prediction, never exact.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "plan/job_plan.h"

namespace cleave {

// What a device reaches, not what its data sheet says: FLOP/s of whole training steps in 16-bit types
// (published runs of models above a billion parameters), bytes a second of copies in its memory, to the host,
// between devices of a node and between nodes (a device's share of the network, of the host's memory and of
// its disks).
struct DeviceModel {
  std::string_view name, says;
  double training, slowdown_fp32;
  double memory, host_link, node_link, network, host_memory, disk;
  double memory_bytes;  // that a job can use
  int per_node;         // devices
};

const std::vector<DeviceModel>& device_models();
// nullptr when there is none of that name.
const DeviceModel* find_device_model(std::string_view name);

// Seconds of one optimizer step on the slowest rank.
struct StepTime {
  double compute = 0;   // products, recomputed ones included, at the device's rate
  double waiting = 0;   // idle in the pipeline
  double exchange = 0;  // collectives and messages that nothing hides
  double update = 0;    // the optimizer, with the way to the host and to the disk
  double total() const { return compute + waiting + exchange + update; }
};
StepTime predict(const DsConfig& config, const JobPlan& plan, const DeviceModel& device);

// One line for people.
std::string format(const StepTime& time, const DeviceModel& device);

}  // namespace cleave
