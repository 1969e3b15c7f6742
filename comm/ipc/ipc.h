// Tensors between the GPUs of one host without NCCL, also between ranks that share a GPU: each rank exports a
// piece of its GPU's memory, which the others open (CUDA IPC), and waits for words in memory of the host,
// which streams write. Reductions add in rank order and round as comm/reduce.h does, so the bits are those of
// the CPU's transports.
#pragma once
#include "comm/device_group.h"

namespace cleave::comm {

inline constexpr int kMostIpcRanks = 64;

// Moves bytes between the GPUs of a group's ranks, all of one host; `device` is this rank's. Its groups meet
// with Error(usage), on every rank, where one of them cannot open the memory of another.
std::shared_ptr<DeviceTransport> ipc_transport(Device device);

}  // namespace cleave::comm
