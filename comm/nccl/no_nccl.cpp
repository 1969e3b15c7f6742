// A build without NCCL's header, or without CUDA.
#include "comm/nccl/nccl.h"

namespace cleave::comm {

NcclStatus nccl_status() {
  return {0,
          "this build has no NCCL: nccl.h was not found when it was configured; install libnccl-dev or pip's "
          "nvidia-nccl-cu13 and configure again"};
}

std::shared_ptr<DeviceTransport> nccl_transport(Device, NcclUse) {
  fail(Exit::usage, "{}", nccl_status().problem);
}

}  // namespace cleave::comm
