// Facts about the machine of a launcher.
#pragma once
#include <string>
#include <vector>

#include "launcher/discovery.h"

namespace cleave::launcher {

// Number of device files of the driver. Does not start CUDA, which is slow.
int gpus_of_machine(const std::string& devices = "/dev");
// The same, or 0 if CUDA_VISIBLE_DEVICES hides every GPU.
int usable_gpus(const Environment& env);

// Slots of this machine: its GPUs, limited to those in CUDA_VISIBLE_DEVICES; without GPUs, `wanted` slots.
// Empty if CUDA_VISIBLE_DEVICES is not a list of numbers; the variable then stays unchanged.
std::vector<int> slots_of_machine(const Environment& env, int gpus, int wanted);
// Names of GPUs or MIG slices in CUDA_VISIBLE_DEVICES; empty if it does not consist of names.
std::vector<std::string> device_names(const Environment& env);

// True for "localhost" and this machine's name.
bool is_this_machine(const std::string& host);
std::string own_host_name();

// Numeric address of a host as seen by others; empty if its name only resolves to a loopback address.
std::string address_of(const std::string& host);

}  // namespace cleave::launcher
