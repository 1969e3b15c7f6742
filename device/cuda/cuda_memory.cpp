#include "device/cuda/cuda_memory.h"

#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "device/cuda/check.h"
#include "device/gpu_problems.h"
#include "device/loading.h"

namespace cleave {

void before_cuda_starts() {
  [[maybe_unused]] static const bool once = (set_cuda_environment(RanksHere::one), true);
}

MemoryBlock cuda_allocate(Device device, int64_t bytes) {
  before_cuda_starts();
  cuda_check(cudaSetDevice(device.index), "cudaSetDevice", device.index);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, size_t(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return {};
  }
  cuda_check(error, "cudaMalloc", device.index);
  cuda_clear(device, data, bytes);
  return {data, [](void* p, int64_t) { cudaFree(p); }};
}

void cuda_clear(Device device, void* data, int64_t bytes) {
  cuda_check(cudaMemset(data, 0, size_t(bytes)), "cudaMemset", device.index);
  // The engine's streams do not wait for the default stream.
  cuda_check(cudaStreamSynchronize(nullptr), "cudaMemset", device.index);
}

MemoryBlock cuda_allocate_pinned(Device device, int64_t bytes) {
  before_cuda_starts();
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
  // A process sees one slice, which its list names; the number may be that of the whole GPU.
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible && is_slice({.name = p.name}))
    halves[0] ^= int64_t(std::hash<std::string_view>()(visible));
  return (halves[0] ^ halves[1]) | 1;  // random except for a few bits; never 0
}

namespace {

// Facts available without starting CUDA on the GPU; with `free_memory`, also its free memory.
cudaError_t look_at(Gpu& gpu, int index, int count, bool free_memory) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, index); error != cudaSuccess) return error;
  gpu = {p.name, p.major, p.minor, p.multiProcessorCount, int64_t(p.totalGlobalMem), 0, {}};
  size_t free = 0, total = 0;
  if (free_memory && cudaSetDevice(index) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess)
    gpu.free_bytes = int64_t(free);
  for (int other = 0; other < count; ++other) {
    int can = 0;
    gpu.reaches.push_back(other == index ||
                          (cudaDeviceCanAccessPeer(&can, index, other) == cudaSuccess && can));
  }
  return cudaSuccess;
}

DriverReport::Answer answer_of(cudaError_t error, int driver) {
  using Answer = DriverReport::Answer;
  if (error == cudaSuccess) return Answer::gpus;
  if (error == cudaErrorNoDevice) return Answer::no_gpu;
  if (error != cudaErrorInsufficientDriver) return Answer::other;
  return driver == 0 ? Answer::no_driver : Answer::old_driver;
}

}  // namespace

CudaStatus cuda_status(bool free_memory) {
  before_cuda_starts();
  CudaStatus status;
  if (cudaDriverGetVersion(&status.driver) != cudaSuccess) status.driver = 0;
  if (cudaRuntimeGetVersion(&status.runtime) != cudaSuccess) status.runtime = CUDART_VERSION;
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  for (int i = 0; i < count && error == cudaSuccess; ++i) {
    Gpu gpu;
    if ((error = look_at(gpu, i, count, free_memory)) == cudaSuccess) status.gpus.push_back(std::move(gpu));
  }
  cudaGetLastError();
  DriverReport report{.answer = answer_of(error, status.driver),
                      .driver = status.driver,
                      .runtime = status.runtime,
                      .gpus = int(status.gpus.size())};
  if (report.answer == DriverReport::Answer::other)
    report.words = fmt::format("CUDA does not start: {} ({}); {}", cudaGetErrorString(error),
                               cudaGetErrorName(error), advice(error));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) report.visible = visible;
  const GpuProblem problem = gpu_problem(report);
  status.problem = problem.text, status.meant = problem.meant;
  return status;
}

std::string problem_of_loading() {
  using ModeCall = CUresult (*)(CUmoduleLoadingMode*);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuModuleGetLoadingMode", &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) cudaGetLastError();
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  if (error == cudaSuccess && found) reinterpret_cast<ModeCall>(found)(&mode);
  if (mode != CU_MODULE_LAZY_LOADING) return {};
  return "CUDA loads kernels at their first launch, which may wait for the whole GPU and so stop ranks that "
         "wait for each other for good; set CUDA_MODULE_LOADING=EAGER before CUDA starts in the process";
}

Gpu cuda_gpu(Device device) {
  Gpu gpu;
  cuda_check(look_at(gpu, device.index, 0, true), "cudaGetDeviceProperties", device.index);
  return gpu;
}

}  // namespace cleave
