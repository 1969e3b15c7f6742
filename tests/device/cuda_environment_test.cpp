// Environment variables that a process sets before CUDA starts.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <optional>

#include "core/build.h"
#include "device/device.h"

namespace cleave {
namespace {

constexpr const char *kChannels = "CUDA_DEVICE_MAX_CONNECTIONS", *kLoading = "CUDA_MODULE_LOADING";

// Restores the environment at its end.
class CudaEnvironment : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {kChannels, kLoading}) {
      const char* value = getenv(name);
      before_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
      unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }
  static std::string value_of(const char* name) {
    const char* value = getenv(name);
    return value ? value : "";
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST_F(CudaEnvironment, HasAChannelPerStreamAlsoForOneRank) {
  set_cuda_environment(RanksHere::one);
  EXPECT_EQ(value_of(kChannels), "32");
  EXPECT_EQ(value_of(kLoading), "");
  set_cuda_environment(RanksHere::several);
  EXPECT_EQ(value_of(kChannels), "32");
  EXPECT_EQ(value_of(kLoading), "EAGER");
}

TEST_F(CudaEnvironment, KeepsTheUsersValue) {
  setenv(kChannels, "1", 1), setenv(kLoading, "LAZY", 1);
  set_cuda_environment(RanksHere::several);
  EXPECT_EQ(value_of(kChannels), "1");
  EXPECT_EQ(value_of(kLoading), "LAZY");
}

TEST_F(CudaEnvironment, WarnsAboutTooFewChannels) {
  EXPECT_EQ(problem_of_channels(), "");
  set_cuda_environment(RanksHere::one);
  EXPECT_EQ(problem_of_channels(), "");
  for (const char* few : {"1", "7", "", "many"}) {
    setenv(kChannels, few, 1);
    EXPECT_NE(problem_of_channels().find(std::string("CUDA_DEVICE_MAX_CONNECTIONS is ") + few),
              std::string::npos);
  }
}

// In a separate process, where no other code has set it: every process that lists GPUs has it, including user
// programs.
TEST_F(CudaEnvironment, IsSetBeforeGpusAreListed) {
  if constexpr (!build::cuda) GTEST_SKIP() << "a build without CUDA";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT((cuda_status(), exit(value_of(kChannels) == "32" ? 0 : 1)), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cleave
