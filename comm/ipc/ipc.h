// Transport between GPUs of one host without NCCL, also for ranks that share a GPU. Each rank exports a
// segment of GPU memory, which the others open (CUDA IPC); streams write and wait for words in host memory.
// Reductions add in rank order and round like comm/reduce.h, so the bits equal those of CPU transports.
#pragma once
#include "comm/device_group.h"

namespace cleave::comm {

inline constexpr int kMostIpcRanks = 64;

// All ranks must be on one host; `device` is this rank's GPU. Meetings of its groups throw Error(usage) on
// every rank if one rank cannot open the memory of another.
std::shared_ptr<DeviceTransport> ipc_transport(Device device);

}  // namespace cleave::comm
