// How tensors travel between the GPUs of a job's ranks: decided once, from what every rank has, and alike on
// all of them.
#pragma once
#include <span>

#include "comm/communicator.h"
#include "device/device.h"

namespace cleave::comm {

// The GPU of a rank among `gpus` of its host, in turns. Error(usage) when the host has fewer than ranks and
// they are not to share.
Device gpu_of_rank(int gpus, int local_rank, int local_size, bool share);

enum class GpuTransport : uint8_t { automatic, nccl, ipc, host };
// "auto", "nccl", "ipc" or "host"; Error(usage) otherwise.
GpuTransport parse_gpu_transport(std::string_view text);

// What a rank has.
struct RankGpu {
  int64_t gpu = 0;   // the same number only for the same GPU of the same host; 0: it computes on the CPU
  int64_t nccl = 0;  // NCCL's version; 0: none
  int64_t host = 0;  // the same number only where processes can share memory
  bool registers = false;  // it is to register buffers with NCCL
  int64_t nccl_host = 0;   // of its NCCL_HOSTID: NCCL takes ranks with others for ranks of other hosts
  bool operator==(const RankGpu&) const = default;
};

// Why this rank has no NCCL, and why CUDA IPC is out of the question; empty where they are not known to fail.
struct GpuProblems {
  std::string nccl, ipc;
};

struct GpuRoute {
  GpuTransport way = GpuTransport::host;  // host: through pinned memory and the CPU's transport
  bool shared_gpus = false;               // some ranks have the same GPU
  bool registers = false;                 // buffers are registered with NCCL
  std::string line;  // what was chosen and why, for people; empty when all ranks are on the CPU
};

// One entry a rank. NCCL where it can, else CUDA IPC on one host, else the host's memory. Error(usage) when
// ranks compute on different kinds of devices, or `wanted` cannot be had.
GpuRoute gpu_route(std::span<const RankGpu> ranks, GpuTransport wanted, const GpuProblems& problems);

// Collective over world: exchanges what every rank has, decides, and sets world up. What to say about it.
std::string connect_gpus(Communicator& world, Device device, GpuTransport wanted);

}  // namespace cleave::comm
