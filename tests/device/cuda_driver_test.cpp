// Messages about an unusable driver. Compiled in builds with a GPU backend.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "device/cuda/check.h"
#include "device/stream.h"

namespace cleave {
namespace {

TEST(Driver, EveryUserVisibleRuntimeErrorHasAnAction) {
  for (cudaError_t error : {cudaErrorInsufficientDriver, cudaErrorNoDevice, cudaErrorSystemDriverMismatch,
                            cudaErrorNoKernelImageForDevice, cudaErrorDevicesUnavailable}) {
    const std::string text = advice(error);
    EXPECT_GT(text.size(), 20u) << error;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

// Our work is ordered with the owner's work before and after it, and the owner keeps the stream.
TEST(ForeignStream, SharesOrderWithItsOwnerWhoKeepsIt) {
  const CudaStatus status = cuda_status();
  if (status.gpus.empty()) GTEST_SKIP() << "no GPU: " << status.problem;
  cudaStream_t theirs;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking), cudaSuccess);
  std::vector<int> order;
  const auto enqueue = [&](cudaHostFn_t task) {
    ASSERT_EQ(cudaLaunchHostFunc(theirs, task, &order), cudaSuccess);
  };
  enqueue([](void* to) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    static_cast<std::vector<int>*>(to)->push_back(1);
  });
  {
    Stream ours(Stream::Foreign{Device::cuda(0), theirs});
    EXPECT_TRUE(ours.on_cuda());
    ours.enqueue([&] { order.push_back(2); });
    const Event behind = ours.record();
    enqueue([](void* to) { static_cast<std::vector<int>*>(to)->push_back(3); });
    behind.wait();
    EXPECT_GE(order.size(), 2u);
  }
  enqueue([](void* to) { static_cast<std::vector<int>*>(to)->push_back(4); });
  ASSERT_EQ(cudaStreamSynchronize(theirs), cudaSuccess);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(cudaStreamDestroy(theirs), cudaSuccess);
}

}  // namespace
}  // namespace cleave
