// Converts CUDA errors to Error.
#pragma once
#include <cuda_runtime_api.h>

#include "core/error.h"
#include "device/device.h"

namespace cleave {

// Returns the reason why CUDA is unusable on this machine and an action; empty for other kinds of errors.
std::string advice(cudaError_t error);

[[noreturn]] void cuda_fail(cudaError_t error, const char* call, int device);

// Throws Error with the call, the device and an action: usage if the machine has no driver or GPU, memory if
// it is out of memory, else internal.
inline void cuda_check(cudaError_t error, const char* call, int device) {
  if (error != cudaSuccess) [[unlikely]]
    cuda_fail(error, call, device);
}

}  // namespace cleave
