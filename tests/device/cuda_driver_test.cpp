// What is said of a driver that cannot be used. Compiled where there is a backend for a GPU.
#include <gtest/gtest.h>

#include "device/cuda/check.h"

namespace cleave {
namespace {

TEST(Driver, TooOldOrMissingIsOneLineWithBothVersionsAndTheFix) {
  const std::string built = fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  const std::string old = driver_problem(12040), none = driver_problem(0);
  for (const std::string& part : {std::string("CUDA 12.4"), built, std::string("install a newer driver")})
    EXPECT_NE(old.find(part), std::string::npos) << old;
  EXPECT_NE(none.find("no NVIDIA driver"), std::string::npos) << none;
  EXPECT_NE(none.find(built), std::string::npos) << none;
  for (const std::string& text : {old, none}) EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

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
