// What is said of a driver that cannot be used. Compiled where there is a backend for a GPU.
#include <gtest/gtest.h>

#include "device/cuda/check.h"

namespace cleave {
namespace {

TEST(Driver, EveryRefusalOfTheRuntimeThatAUserMeetsHasAFix) {
  for (cudaError_t error : {cudaErrorInsufficientDriver, cudaErrorNoDevice, cudaErrorSystemDriverMismatch,
                            cudaErrorNoKernelImageForDevice, cudaErrorDevicesUnavailable}) {
    const std::string text = advice(error);
    EXPECT_GT(text.size(), 20u) << error;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace cleave
