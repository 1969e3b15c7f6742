// cuDNN's opinion of our graphs. It compiles for a GPU that it is only told about, so most of it runs
// anywhere: without a driver, the toolkit's stub of one has to be loaded. Compiled where there is a backend
// for a GPU and cuDNN's headers.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/cuda/cudnn_attention_graphs.h"

namespace cleave::kernels::gpu {
namespace {

// What an H100 would say of itself.
constexpr std::string_view kHopper =
    R"({"deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
 "multiProcessorCount": 132, "warpSize": 32, "totalGlobalMem": 85000000000, "l2CacheSize": 52428800,
 "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "maxGridSize": [2147483647, 65535, 65535],
 "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
 "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxSharedMemoryPerBlock": 49152,
 "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "isTccDriver": 0,
 "supportCoopLaunch": 1})";

class CudnnGraphs : public testing::TestWithParam<AttentionShape> {
 protected:
  void SetUp() override {
    // Its name is the driver's, so the library finds it under that.
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) && !dlopen(CUDA_DRIVER_STUB, RTLD_NOW | RTLD_GLOBAL))
      GTEST_SKIP() << "neither a driver nor its stub: " << dlerror();
    if (!cudnn_problem().empty()) GTEST_SKIP() << cudnn_problem();
    try {
      hopper_ = std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
      hopper_->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, int64_t(kHopper.size()),
                   kHopper.data());
      hopper_->finalize();
    } catch (const Error& e) {
      GTEST_SKIP() << "this cuDNN cannot be told about a GPU: " << e.what();
    }
  }
  size_t engines(const std::shared_ptr<CudnnGraph>& graph) {
    graph->finish(nullptr);
    return graph->engines(hopper_.get()).size();
  }
  std::unique_ptr<CudnnDescriptor> hopper_;
};

// GPT-2 124M and 1.5B, Qwen2.5 1.5B and 7B, and a long sequence.
constexpr AttentionShape kShapes[] = {{8, 1024, 12, 12, 64, DType::bf16},
                                      {2, 1024, 25, 25, 64, DType::bf16},
                                      {8, 1024, 12, 2, 128, DType::bf16},
                                      {1, 1024, 28, 4, 128, DType::fp16},
                                      {1, 4096, 32, 32, 128, DType::bf16}};
INSTANTIATE_TEST_SUITE_P(Of, CudnnGraphs, testing::ValuesIn(kShapes));

TEST_P(CudnnGraphs, AreRecognizedAsAttentionOnHopper) {
  EXPECT_GT(engines(attention_graph(GetParam())), 0u);
  for (QuerySums sums : {QuerySums::in_order, QuerySums::any_order})
    EXPECT_GT(engines(attention_gradient_graph(GetParam(), sums)), 0u) << int(sums);
}

TEST_P(CudnnGraphs, ThatNoEngineKnowsAreRefusedInWords) {
  AttentionShape odd = GetParam();
  odd.dim = 63;
  try {
    const std::shared_ptr<CudnnGraph> graph = attention_graph(odd);
    graph->finish(nullptr);
    const CudnnPlan plan(graph, nullptr, hopper_.get());
    FAIL() << "heads of 63 elements have a plan";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::internal);
    EXPECT_GT(std::string(e.what()).size(), 20u);
  }
}

}  // namespace
}  // namespace cleave::kernels::gpu
