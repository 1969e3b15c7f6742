// cuDNN resources of a stream.
#pragma once
#include "device/cuda/queue.h"
#include "kernels/cuda/cudnn_graph.h"

namespace cleave::kernels::gpu {

inline constexpr const char* kCudnnSwitch = "CLEAVE_CUDNN";  // environment variable; off: does not use cuDNN

// Creating plans takes seconds, so a new stream of the same GPU with equal workspace reuses handle and plans
// of an ended stream.
struct CudnnStream {
  int device;
  int64_t room;    // bytes of workspace: the stream's scratch for products
  bool any_order;  // sums may be added in any order
  CudnnHandle handle = {};
  std::shared_ptr<void> attention = {}, gated = {};  // plans of cudnn_attention.cpp and cudnn_gated.cpp
};

// Throws Error(internal) if cuDNN cannot create a handle.
CudnnStream& cudnn_of(CudaQueue& queue);

}  // namespace cleave::kernels::gpu
