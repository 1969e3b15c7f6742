#include "offload/disk_queue.h"

namespace cleave::offload {

std::unique_ptr<DiskQueue> make_uring_queue(int, std::string& refusal) {
  refusal = "this program was built without liburing";
  return nullptr;
}

std::string liburing_version() { return ""; }

}  // namespace cleave::offload
