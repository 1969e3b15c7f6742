// A build without NCCL's header, or without CUDA.
#include "comm/nccl/nccl.h"

namespace cleave::comm {

NcclStatus nccl_status() {
  return {0,
          "this build has no NCCL, because nccl.h was missing at configuration; install libnccl-dev or "
          "nvidia-nccl-cu13 from pip, and configure again"};
}

std::shared_ptr<DeviceTransport> nccl_transport(Device, NcclUse) {
  fail(Exit::usage, "{}", nccl_status().problem);
}

}  // namespace cleave::comm
