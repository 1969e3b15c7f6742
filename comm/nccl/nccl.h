// NCCL transport between GPUs. The library is loaded on first use, so that the program also runs without it.
// NCCL sums in its own order, not in rank order, and rounds 16-bit floats at every addition: results agree
// with other transports up to rounding, not bit for bit.
#pragma once
#include "comm/device_group.h"
#include "device/cuda_library.h"

namespace cleave::comm {

struct NcclStatus {
  int version = 0;                    // 22809 is 2.28.9; 0: not found
  std::string problem;                // empty, or the reason why it cannot be used, with a fix
  std::string path = {}, place = {};  // as in CudaLibrary
};

// Loads libnccl.so.2 at the first call; never throws.
NcclStatus nccl_status();

struct NcclUse {
  bool shared_gpus = false;  // several ranks may share a GPU (NCCL 2.30 or newer)
  bool registers = false;    // registers buffers; equal on all ranks
};
// `device` is this rank's GPU. Throws Error(usage) if nccl_status() has a problem.
std::shared_ptr<DeviceTransport> nccl_transport(Device device, NcclUse use);

}  // namespace cleave::comm
