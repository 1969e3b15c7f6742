// What a stream works with in cuDNN.
#pragma once
#include "device/cuda/queue.h"
#include "kernels/cuda/cudnn_graph.h"

namespace cleave::kernels::gpu {

inline constexpr const char* kCudnnSwitch = "CLEAVE_CUDNN";  // environment variable; off: cuDNN is not used

// Plans take seconds to make, so when a stream has ended another one of its GPU, with as much workspace,
// takes over its handle and plans.
struct CudnnStream {
  int device;
  int64_t room;    // bytes of workspace: the stream's scratch for products
  bool any_order;  // whether sums may be added in any
  CudnnHandle handle = {};
  std::shared_ptr<void> attention = {}, gated = {};  // the plans of cudnn_attention.cpp and cudnn_gated.cpp
};

// Error(internal) where cuDNN gives no handle.
CudnnStream& cudnn_of(CudaQueue& queue);

}  // namespace cleave::kernels::gpu
