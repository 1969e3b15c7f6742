// Device of a test case.
#pragma once
#include <gtest/gtest.h>

#include <memory>

#include "device/copy.h"
#include "device/workspace.h"

namespace cleave::kernels {

// A GPU with the workspace of kernels; null for a CPU test case.
struct TestDevice {
  explicit TestDevice(Device device) : memory({}, Memory::Mode::real, device), stream(device) {
    space.lend_to(stream);
  }

  static TestDevice*& current() {
    static TestDevice* device = nullptr;
    return device;
  }

  Memory memory;
  Workspace space = allocate_workspace(memory, kKernelScratch);
  Stream stream;
  int64_t launches = 0;
};

class TestStream {
 public:
  Stream& get() { return TestDevice::current() ? TestDevice::current()->stream : inline_; }

 private:
  Stream inline_;
};

// Launches and waits; on every device, throws faults found in the operands.
template <class Op>
void launch(const Op& op, TestStream& stream) {
  launch(op, stream.get());
  if (TestDevice* device = TestDevice::current()) ++device->launches;
  stream.get().synchronize();
}

// The CPU, and the first GPU if the build has a backend for it.
std::vector<Device> test_devices();

class OnDevice : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (!GetParam().is_cuda()) return;
    const CudaStatus status = cuda_status();
    if (status.gpus.empty()) GTEST_SKIP() << "no GPU: " << status.problem;
    device_ = std::make_unique<TestDevice>(GetParam());
    TestDevice::current() = device_.get();
  }
  void TearDown() override {
    TestDevice::current() = nullptr;
    device_.reset();
  }

 private:
  std::unique_ptr<TestDevice> device_;
};

// Declares the fixture suite##Kernel; its TEST_P cases run once per device.
#define KERNEL_SUITE(suite)                                                      \
  class suite##Kernel : public OnDevice {};                                      \
  INSTANTIATE_TEST_SUITE_P(On, suite##Kernel, testing::ValuesIn(test_devices()), \
                           [](const auto& i) { return std::string(i.param.is_cuda() ? "cuda" : "cpu"); })

}  // namespace cleave::kernels
