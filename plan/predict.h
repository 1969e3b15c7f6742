// Predicts the step time from counted work and a device's rates: a roofline for choosing between layouts,
// never exact. Replays the enqueued work (plan/timeline.h), which counts the messages that computation hides.
// For a measured CPU see plan/measured_cpu.h.
#pragma once
#include <string>
#include <vector>

#include "plan/job_plan.h"

namespace cleave::plan {

// Achieved rates of a device, not data sheet values: FLOP/s of whole training steps in 16-bit types
// (published runs of models above a billion parameters), and bytes per second of copies in its memory, to the
// host, between devices of a node and between nodes (a device's share of the network, of host memory and of
// the disks).
struct DeviceModel {
  std::string name, says;
  double training = 0, slowdown_fp32 = 0;
  double memory = 0, host_link = 0, node_link = 0, network = 0, host_memory = 0, disk = 0;
  double memory_bytes = 0;  // usable by a job
  int per_node = 0;         // devices
};

const std::vector<DeviceModel>& device_models();
// Returns a device by name, or reads a measured one from a ".json" file: an object with a positive number for
// each number above, under its name there. Throws Error(usage) with the list of names, or with the file and
// its missing or unknown keys.
DeviceModel device_model(const std::string& name);

// Seconds of one optimizer step on the slowest rank.
struct StepTime {
  std::string device, says;  // name of the predicted device, and its description
  double compute = 0;        // products, including recomputed ones, at the device's rate
  double waiting = 0;        // idle time in the pipeline
  // Messages that no computation hides, and the multiprocessors that the hidden ones take.
  double exchange = 0;
  double update = 0;     // optimizer, including transfers to host and disk
  bool streams = false;  // offloaded state streams through the device, by configuration or as the faster side
  double total() const { return compute + waiting + exchange + update; }
};
// The plan must be one of plan_job().
StepTime predict(const config::DsConfig& config, const JobPlan& plan, const DeviceModel& device);

// Returns one line for users.
std::string format(const StepTime& time);

// Returns the plan's JSON object with "predicted": the device and the seconds of a step, in total and by
// part.
std::string to_json(const JobPlan& plan, const StepTime& time);

}  // namespace cleave::plan
