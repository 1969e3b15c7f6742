// A build without CUDA.
#include "comm/ipc/ipc.h"

namespace cleave::comm {

std::shared_ptr<DeviceTransport> ipc_transport(Device) {
  fail(Exit::usage, "CUDA: this build has no CUDA backend; build the preset cuda");
}

}  // namespace cleave::comm
