// CUDA's errors as this project's.
#pragma once
#include <cuda_runtime_api.h>

#include "core/error.h"
#include "device/device.h"

namespace cleave {

// Why CUDA cannot be used on this machine and what to do; empty when the error is of another kind.
std::string advice(cudaError_t error);

[[noreturn]] void cuda_fail(cudaError_t error, const char* call, int device);

// Throws Error naming the call, the device and what to do: usage where the machine lacks a driver or a GPU,
// memory where it is full, internal otherwise.
inline void cuda_check(cudaError_t error, const char* call, int device) {
  if (error != cudaSuccess) [[unlikely]]
    cuda_fail(error, call, device);
}

}  // namespace cleave
