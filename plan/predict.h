// How long a step would take, from counted work and a device's rates: a roofline for choosing between
// layouts. It is a prediction, never exact. Of a CPU that was measured: plan/measured_cpu.h.
#pragma once
#include <string>
#include <vector>

#include "plan/job_plan.h"

namespace cleave::plan {

// What a device reaches, not what its data sheet says: FLOP/s of whole training steps in 16-bit types
// (published runs of models above a billion parameters), bytes a second of copies in its memory, to the host,
// between devices of a node and between nodes (a device's share of the network, of the host's memory and of
// its disks).
struct DeviceModel {
  std::string name, says;
  double training = 0, slowdown_fp32 = 0;
  double memory = 0, host_link = 0, node_link = 0, network = 0, host_memory = 0, disk = 0;
  double memory_bytes = 0;  // that a job can use
  int per_node = 0;         // devices
};

const std::vector<DeviceModel>& device_models();
// One of them by its name; or what a file that ends in ".json" says of a device that was measured: an object
// with a positive number for each number above, under its name there. Error(usage) lists the names, or names
// the file and the keys that are missing or not known.
DeviceModel device_model(const std::string& name);

// Seconds of one optimizer step on the slowest rank.
struct StepTime {
  std::string device, says;  // what it is predicted of: a name, and what that stands for
  double compute = 0;        // products, recomputed ones included, at the device's rate
  double waiting = 0;        // idle in the pipeline
  double exchange = 0;       // collectives and messages that nothing hides
  double update = 0;         // the optimizer, with the way to the host and to the disk
  bool streams =
      false;  // offloaded state through the device, where the configuration leaves it open: if sooner
  double total() const { return compute + waiting + exchange + update; }
};
StepTime predict(const config::DsConfig& config, const JobPlan& plan, const DeviceModel& device);

// One line for people.
std::string format(const StepTime& time);

// The plan's JSON object with "predicted": the device and the seconds of a step, whole and by what takes
// them.
std::string to_json(const JobPlan& plan, const StepTime& time);

}  // namespace cleave::plan
