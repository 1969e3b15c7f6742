// A build without CUDA.
#include "comm/ipc/ipc.h"

namespace cleave::comm {

std::shared_ptr<DeviceTransport> ipc_transport(Device) {
  fail(Exit::usage, "this build has no CUDA backend");
}

}  // namespace cleave::comm
