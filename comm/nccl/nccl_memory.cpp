#include "comm/nccl/nccl_memory.h"

#include <atomic>
#include <cstdio>

#include "comm/nccl/library.h"
#include "core/warnings.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda_memory.h"

namespace cleave::comm {
namespace {

std::atomic<bool> refused{false};

void give_back(void* data, int64_t) {
  const NcclLibrary& nccl = nccl_library();
  const ncclResult_t result = nccl.mem_free(data);
  if (result == ncclSuccess) return;
  cudaGetLastError();
  warn("NCCL cannot free its memory: {}", nccl.get_error_string(result));
}

}  // namespace

bool nccl_gave_all() { return !refused; }

// NCCL uses the current GPU of the thread.
MemoryBlock nccl_allocate(Device device, int64_t bytes) {
  before_cuda_starts();
  cuda_check(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  if (refused) return cuda_allocate(device, bytes);
  const NcclLibrary& nccl = nccl_library();
  void* data = nullptr;
  const ncclResult_t result = nccl.mem_alloc(&data, size_t(bytes));
  if (result == ncclSuccess) {
    cuda_clear(device, data, bytes);
    return {data, give_back};
  }
  cudaGetLastError();
  refused = true;
  warn(
      "{}: NCCL cannot allocate memory ({}), so buffers come from cudaMalloc and are not "
      "registered",
      name_of(device), nccl.get_error_string(result));
  return cuda_allocate(device, bytes);
}

}  // namespace cleave::comm
