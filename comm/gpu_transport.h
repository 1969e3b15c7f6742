// Chooses how tensors travel between the GPUs of a job's ranks. All ranks decide once, from the same facts.
#pragma once
#include <span>

#include "comm/communicator.h"
#include "device/device.h"

namespace cleave::comm {

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
  bool slice = false;      // the GPU is a part of one (MIG)
  bool shares = true;      // other ranks may have the same GPU
  bool operator==(const RankGpu&) const = default;
};

// Reasons why this rank cannot use NCCL or CUDA IPC; empty if not known to fail.
struct GpuProblems {
  std::string nccl, ipc;
  std::string cpu = {};  // why the first rank without a GPU has none
};

struct GpuRoute {
  GpuTransport way = GpuTransport::host;  // host: through pinned memory and the CPU's transport
  bool shared_gpus = false;               // some ranks have the same GPU
  bool registers = false;                 // buffers are registered with NCCL
  std::string line;     // the choice and its reason, for users; empty if all ranks are on the CPU
  std::string warning;  // empty, or how the GPUs of the ranks differ
};

// One entry per rank. Prefers NCCL, then CUDA IPC on one host, then host memory. Throws Error(usage) if ranks
// compute on different kinds of devices, have the same GPU without RankGpu::shares, or if `wanted` is not
// possible.
GpuRoute gpu_route(std::span<const RankGpu> ranks, GpuTransport wanted, const GpuProblems& problems);

// Device of this rank.
struct OwnDevice {
  Device device;
  Gpu gpu = {};              // facts of the GPU
  bool shares = true;        // as RankGpu
  std::string why_cpu = {};  // why the rank computes on the CPU; may be empty
};

// Collective over `world`: exchanges the facts of all ranks, decides, and sets up `world`. Every rank throws
// the same error.
GpuRoute connect_gpus(Communicator& world, const OwnDevice& own, GpuTransport wanted);

}  // namespace cleave::comm
