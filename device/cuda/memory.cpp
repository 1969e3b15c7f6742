#include "device/cuda/memory.h"

#include <cstring>

#include "device/cuda/check.h"

namespace cleave {

Block cuda_allocate(Device device, int64_t bytes) {
  cuda_check(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size_t(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return {};
  }
  cuda_check(error, "cudaMalloc", device.index);
  cuda_check(cudaMemset(data, 0, size_t(bytes)), "cudaMemset", device.index);
  // Streams of this project do not wait for the default stream.
  cuda_check(cudaStreamSynchronize(nullptr), "cudaMemset", device.index);
  return {data, [](void* p, int64_t) { cudaFree(p); }};
}

Block cuda_allocate_pinned(Device device, int64_t bytes) {
  cuda_check(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  void* data = nullptr;
  if (cudaHostAlloc(&data, size_t(bytes), cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::memset(data, 0, size_t(bytes));
  return {data, [](void* p, int64_t) { cudaFreeHost(p); }};
}

int64_t cuda_identity(Device device) {
  if (!device.is_cuda()) return 0;
  cudaDeviceProp p;
  cuda_check(cudaGetDeviceProperties(&p, device.index), "cudaGetDeviceProperties", device.index);
  int64_t halves[2];
  static_assert(sizeof p.uuid == sizeof halves);
  std::memcpy(halves, &p.uuid, sizeof halves);
  return (halves[0] ^ halves[1]) | 1;  // random but for a few bits; never 0
}

CudaStatus cuda_status(bool free_memory) {
  CudaStatus status;
  if (cudaDriverGetVersion(&status.driver) != cudaSuccess) status.driver = 0;
  if (cudaRuntimeGetVersion(&status.runtime) != cudaSuccess) status.runtime = 0;
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int i = 0; i < count && error == cudaSuccess; ++i) {
    cudaDeviceProp p;
    if ((error = cudaGetDeviceProperties(&p, i)) != cudaSuccess) break;
    Gpu gpu{p.name, p.major, p.minor, p.multiProcessorCount, int64_t(p.totalGlobalMem), 0, {}};
    size_t free = 0, total = 0;
    if (free_memory && cudaSetDevice(i) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess)
      gpu.free_bytes = int64_t(free);
    for (int other = 0; other < count; ++other) {
      int can = 0;
      gpu.reaches.push_back(other == i || (cudaDeviceCanAccessPeer(&can, i, other) == cudaSuccess && can));
    }
    status.gpus.push_back(std::move(gpu));
  }
  cudaGetLastError();
  if (!status.gpus.empty()) return status;
  if (error == cudaSuccess) error = cudaErrorNoDevice;
  status.problem = advice(error);
  if (error == cudaErrorInsufficientDriver) status.problem = driver_problem(status.driver);
  if (status.problem.empty())
    status.problem =
        fmt::format("CUDA does not start: {} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
  return status;
}

}  // namespace cleave
