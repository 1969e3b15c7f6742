// Checks our graphs with cuDNN. It can compile for a described GPU, so most of this runs anywhere; without a
// driver, it needs the toolkit's stub driver. Compiled in builds with a GPU backend and cuDNN's headers.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/cuda/cudnn_attention_graphs.h"
#include "kernels/cuda/cudnn_gated_graphs.h"

namespace cleave::kernels::gpu {
namespace {

// Device description of an H100.
constexpr std::string_view kHopper =
    R"({"deviceName": "NVIDIA H100 80GB HBM3", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
 "multiProcessorCount": 132, "warpSize": 32, "totalGlobalMem": 85000000000, "l2CacheSize": 52428800,
 "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "maxGridSize": [2147483647, 65535, 65535],
 "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
 "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxSharedMemoryPerBlock": 49152,
 "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "isTccDriver": 0,
 "supportCoopLaunch": 1})";

class ToldAboutHopper : public testing::Test {
 protected:
  void SetUp() override {
    // Loads the stub under the driver's name, so the library finds it.
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

class CudnnGraphs : public ToldAboutHopper, public testing::WithParamInterface<AttentionShape> {};
class CudnnGatedGraphs : public ToldAboutHopper, public testing::WithParamInterface<GatedShape> {};

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

TEST_P(CudnnGraphs, FailWithAMessageIfNoEngineSupportsThem) {
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

// Qwen2.5 1.5B, 3B and 7B, one of two ranks of the 7B model, and a trial's shape.
constexpr GatedShape kGatedShapes[] = {{32768, 8960, 1536, DType::bf16},
                                       {16384, 11008, 2048, DType::bf16},
                                       {16384, 18944, 3584, DType::bf16},
                                       {16384, 9472, 3584, DType::fp16},
                                       {192, 64, 128, DType::bf16}};
INSTANTIATE_TEST_SUITE_P(Of, CudnnGatedGraphs, testing::ValuesIn(kGatedShapes));

TEST_P(CudnnGatedGraphs, HaveEnginesOnHopper) {
  EXPECT_GT(engines(gated_graph(GetParam())), 0u);
  EXPECT_GT(engines(gated_gradient_graph(GetParam())), 0u);
}

// Without a driver, the compiled kernel cannot be loaded; this is the only expected error.
TEST_F(ToldAboutHopper, CudnnCompilesSwigluIntoAProduct) {
  for (const bool gradient : {false, true}) try {
      const GatedShape& s = kGatedShapes[4];
      const std::shared_ptr<CudnnGraph> graph = gradient ? gated_gradient_graph(s) : gated_graph(s);
      graph->finish(nullptr);
      const CudnnPlan plan(graph, nullptr, hopper_.get());
      EXPECT_LT(plan.workspace_bytes(), 64 << 20);
    } catch (const Error& e) {
      EXPECT_NE(std::string_view(e.what()).find("cuLibraryLoadData"), std::string_view::npos) << e.what();
    }
}

}  // namespace
}  // namespace cleave::kernels::gpu
