// What a launcher asks of the machine it runs on.
#pragma once
#include <string>
#include <vector>

#include "launcher/discovery.h"

namespace cleave::launcher {

// Counted without starting CUDA, which takes long: the devices that the driver made.
int gpus_of_machine(const std::string& devices = "/dev");

// The slots of this machine: its GPUs, or those that CUDA_VISIBLE_DEVICES leaves; without any, as many as
// are wanted. Nothing where CUDA_VISIBLE_DEVICES is not a list of numbers: then it is left as it is.
std::vector<int> slots_of_machine(const Environment& env, int gpus, int wanted);

// "localhost", or this machine's own name.
bool is_this_machine(const std::string& host);
std::string own_host_name();

// The numeric address of a host as others reach it; empty where its name says none but a loopback's.
std::string address_of(const std::string& host);

}  // namespace cleave::launcher
