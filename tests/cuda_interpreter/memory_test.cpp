// Undefined timing of memory operations in CUDA happens both ways, and unwritten memory is NaN.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/cuda_interpreter/streams.h"

namespace interpreter {
namespace {

struct Memory {
  explicit Memory(size_t bytes) { EXPECT_EQ(cudaMalloc(&at, bytes), cudaSuccess); }
  ~Memory() { cudaFree(at); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  float read(size_t byte) const {
    float x = 0;
    EXPECT_EQ(cudaMemcpy(&x, static_cast<std::byte*>(at) + byte, sizeof x, cudaMemcpyDefault), cudaSuccess);
    return x;
  }
  void write(size_t byte, float x) const {
    EXPECT_EQ(cudaMemcpy(static_cast<std::byte*>(at) + byte, &x, sizeof x, cudaMemcpyDefault), cudaSuccess);
  }
  void* at = nullptr;
};

TEST(InterpretedMemory, IsNoNumberWhereNobodyHasWritten) {
  constexpr size_t kBytes = size_t{300} << 20;
  for (int i = 0; i < 2; ++i) {  // the second time in the place of the first
    const Memory x(kBytes);
    for (const size_t at : {size_t{0}, size_t{262140}, size_t{262144}, kBytes / 2, kBytes - 4}) {
      EXPECT_TRUE(std::isnan(x.read(at))) << at;
      x.write(at, 1.5f);
      EXPECT_EQ(x.read(at), 1.5f) << at;
    }
    EXPECT_TRUE(std::isnan(x.read(262148))) << "next to written bytes";
  }
}

// A copy that spans touched and untouched bytes.
TEST(InterpretedMemory, KeepsWhatWasWrittenWhenItsNeighboursAreTouchedFirst) {
  constexpr size_t kChunk = 256 << 10;
  const Memory x(4 * kChunk), y(4 * kChunk);
  x.write(kChunk, 2.5f);
  EXPECT_EQ(cudaMemcpy(y.at, x.at, 4 * kChunk, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(y.read(kChunk), 2.5f);
  EXPECT_TRUE(std::isnan(y.read(kChunk - 4)) && std::isnan(y.read(3 * kChunk)));
}

TEST(InterpretedMemory, IsZeroWhereItWasSetToZeroAndNowhereElse) {
  constexpr size_t kBytes = 3 << 20;
  for (const auto& [begin, end] :
       {std::pair{size_t{0}, kBytes}, {size_t{100}, kBytes - 100}, {size_t{100}, size_t{200}}}) {
    const Memory x(kBytes);
    for (size_t at = 0; at < kBytes; at += 4096) x.write(at, 3);
    ASSERT_EQ(cudaMemset(static_cast<std::byte*>(x.at) + begin, 0, end - begin), cudaSuccess);
    for (const size_t at : {size_t{0}, size_t{4096}, kBytes / 2, kBytes - 4096})
      EXPECT_EQ(x.read(at), at >= begin && at < end ? 0 : 3) << at;
    EXPECT_TRUE(begin == 0 || std::isnan(x.read(96)));
    EXPECT_EQ(x.read(100), 0);
    EXPECT_EQ(x.read(end - 4), 0);
    EXPECT_TRUE(end == kBytes || std::isnan(x.read(end)));
  }
}

TEST(InterpretedMemory, OfTheHostThatIsPageableIsReadEarlyOrLate) {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const Memory x(sizeof(float));
  int early = 0, late = 0;
  for (int i = 0; i < 40; ++i) {
    float value = 1;
    cudaMemcpyAsync(x.at, &value, sizeof value, cudaMemcpyDefault, stream);
    value = 2;
    cudaStreamSynchronize(stream);
    const float got = x.read(0);
    early += got == 1, late += got == 2;
  }
  EXPECT_GT(early, 5);
  EXPECT_GT(late, 5);
  EXPECT_EQ(early + late, 40);
  cudaStreamDestroy(stream);
}

TEST(InterpretedMemory, ThatIsPageLockedIsReadWhenItsStreamComesToIt) {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const Memory x(sizeof(float));
  float* value = nullptr;
  ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&value), sizeof *value, 0), cudaSuccess);
  int wrong = 0;
  for (int i = 0; i < 20; ++i) {
    *value = 1;
    cudaLaunchHostFunc(
        stream, [](void* v) { *static_cast<float*>(v) = 2; }, value);
    cudaMemcpyAsync(x.at, value, sizeof *value, cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    wrong += x.read(0) != 2;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(cudaFreeHost(value), cudaSuccess);
  cudaStreamDestroy(stream);
}

// Frees wait for all streams of the GPU; allocations do sometimes.
TEST(InterpretedMemory, WaitsForTheWholeGpuWhereCudaMay) {
  setenv("CUDA_INTERPRETER_WAITS", "1", 1);
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const Memory x(sizeof(float));
  int waited = 0;
  for (int i = 0; i < 20; ++i) {
    void* freed = nullptr;
    cudaMemsetAsync(x.at, 0, sizeof(float), stream);
    ASSERT_EQ(cudaMalloc(&freed, 100), cudaSuccess);
    waited += cudaStreamQuery(stream) == cudaSuccess;
    cudaMemsetAsync(x.at, 0, sizeof(float), stream);
    ASSERT_EQ(cudaFree(freed), cudaSuccess);
    ASSERT_EQ(cudaStreamQuery(stream), cudaSuccess) << "cudaFree did not wait";
  }
  EXPECT_GT(waited, 2);
  EXPECT_LT(waited, 18);
  unsetenv("CUDA_INTERPRETER_WAITS");
  cudaGetLastError();
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace interpreter
