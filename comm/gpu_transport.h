// Chooses how tensors travel between the GPUs of a job's ranks. All ranks decide once, from the same facts.
#pragma once
#include <span>

#include "comm/communicator.h"
#include "device/device.h"

namespace cleave::comm {

// GPU of a rank among `gpus` of its host, assigned round-robin. Throws Error(usage) if the host has fewer
// GPUs than ranks and `share` is false.
Device gpu_of_rank(int gpus, int local_rank, int local_size, bool share);

enum class GpuTransport : uint8_t { automatic, nccl, ipc, host };
// Parses "auto", "nccl", "ipc" or "host"; otherwise throws Error(usage).
GpuTransport parse_gpu_transport(std::string_view text);

// Facts of a rank.
struct RankGpu {
  int64_t gpu = 0;         // unique number of the GPU over all hosts; 0: computes on the CPU
  int64_t nccl = 0;        // NCCL's version; 0: none
  int64_t host = 0;        // equal on ranks that can share memory
  bool registers = false;  // the rank requests registered buffers
  int64_t nccl_host = 0;   // hash of NCCL_HOSTID; NCCL takes different values for different hosts
  bool operator==(const RankGpu&) const = default;
};

// Reasons why this rank cannot use NCCL or CUDA IPC; empty if not known to fail.
struct GpuProblems {
  std::string nccl, ipc;
};

struct GpuRoute {
  GpuTransport way = GpuTransport::host;  // host: through pinned memory and the CPU's transport
  bool shared_gpus = false;               // some ranks have the same GPU
  bool registers = false;                 // buffers are registered with NCCL
  std::string line;  // the choice and its reason, for users; empty if all ranks are on the CPU
};

// One entry per rank. Prefers NCCL, then CUDA IPC on one host, then host memory. Throws Error(usage) if ranks
// compute on different kinds of devices or if `wanted` is not possible.
GpuRoute gpu_route(std::span<const RankGpu> ranks, GpuTransport wanted, const GpuProblems& problems);

// Collective over `world`: exchanges the facts of all ranks, decides, and sets up `world`. Returns
// GpuRoute::line.
std::string connect_gpus(Communicator& world, Device device, GpuTransport wanted);

}  // namespace cleave::comm
