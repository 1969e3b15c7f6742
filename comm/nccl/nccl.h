// NCCL between GPUs. The library is loaded when it is first asked for, so that the program starts, and trains
// otherwise, where there is none. Its sums run in an order of its own, not in rank order, and 16-bit floats
// are rounded at every addition: results agree with the other transports to rounding, not to the bit.
#pragma once
#include "comm/device_group.h"

namespace cleave::comm {

struct NcclStatus {
  int version = 0;      // 22809 is 2.28.9; 0: none
  std::string problem;  // empty, or why it cannot be used and what to do
};

// Looks for libnccl.so.2, in the file that CLEAVE_NCCL names or where the system looks; never throws.
NcclStatus nccl_status();

inline std::string nccl_version_text(int version) {  // "2.28.9"
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

// Since when buffers are registered. NCCL's allocator, which that asks for, then takes what CUDA recommends
// of a GPU, multiples of 2 MiB; before, what objects for multicast want, which nobody knows beforehand.
inline constexpr int kNcclRegisters = 22600;

struct NcclUse {
  bool shared_gpus = false;  // several ranks may have the same one (NCCL 2.30 or newer)
  bool registers = false;    // lent memory is registered (kNcclRegisters or newer), alike on all ranks
};
// Moves bytes between the GPUs of a group's ranks; `device` is this rank's. Error(usage) where nccl_status()
// has a problem.
std::shared_ptr<DeviceTransport> nccl_transport(Device device, NcclUse use);

}  // namespace cleave::comm
