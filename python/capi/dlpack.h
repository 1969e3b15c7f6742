// Memory as a tensor of another library: the DLPack structures, version 0
// (https://dmlc.github.io/dlpack/latest/c_api.html). Only CPU and CUDA tensors are used.
#pragma once
#include <cstdint>
#include <memory>

#include "device/device.h"
#include "device/tensor.h"

namespace cleave::capi {

struct DLDevice {
  int32_t type, index;  // type 1: CPU, 2: CUDA
};
struct DLDataType {
  uint8_t code, bits;  // code 2: float, 4: bfloat
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t dims;
  DLDataType type;
  int64_t* shape;
  int64_t* strides;  // null: row major, contiguous
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor* self);
};

// Makes a tensor of a float type that shares `owner` of the memory. The consumer calls its deleter.
// turned: the matrix is stored in column-major order.
DLManagedTensor* managed_tensor(std::shared_ptr<const void> owner, void* data, DType type,
                                const int64_t* shape, int dims, Device device, bool turned);

}  // namespace cleave::capi
