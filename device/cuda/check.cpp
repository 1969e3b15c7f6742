#include "device/cuda/check.h"

namespace cleave {

std::string advice(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return fmt::format(
          "no NVIDIA driver found, or a driver too old for CUDA {}.{}; install a newer driver (nvidia-smi "
          "shows the version)",
          CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    case cudaErrorNoDevice:
      return "no GPU is visible; look at CUDA_VISIBLE_DEVICES and nvidia-smi, and in a container at --gpus "
             "all";
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "the driver's kernel module and its library differ; restart the machine or reinstall the driver";
    case cudaErrorNoKernelImageForDevice:
      return "this GPU is older than compute capability 8.0, or newer than this build supports; configure "
             "with -DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorDevicesUnavailable:
      return "another process holds the GPU exclusively; nvidia-smi names it";
    default:
      return "";
  }
}

void cuda_fail(cudaError_t error, const char* call, int device) {
  cudaGetLastError();  // otherwise the next call would report it again
  const std::string what =
      fmt::format("{} on cuda:{}: {} ({})", call, device, cudaGetErrorString(error), cudaGetErrorName(error));
  if (error == cudaErrorMemoryAllocation)
    fail(Exit::memory, "{}; nvidia-smi shows who else uses the GPU's memory", what);
  const std::string fix = advice(error);
  if (!fix.empty()) fail(Exit::usage, "{}; {}", what, fix);
  fail(Exit::internal, "{}; run under compute-sanitizer to find the kernel", what);
}

}  // namespace cleave
