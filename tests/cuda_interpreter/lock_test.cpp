// A call that waits blocks those of other threads, unless it synchronizes.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <vector>

namespace interpreter {
namespace {

using namespace std::chrono_literals;

// A stream with work that waits until it is released.
class HeldStream {
 public:
  HeldStream() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    const auto hold = [](void* gate) { static_cast<std::promise<void>*>(gate)->get_future().wait(); };
    EXPECT_EQ(cudaLaunchHostFunc(stream_, hold, &gate_), cudaSuccess);
  }
  ~HeldStream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }
  void let_go() { gate_.set_value(); }

 private:
  cudaStream_t stream_ = nullptr;
  std::promise<void> gate_;
};

// Returns true if a call of another thread is blocked for this time while `call` waits for the held
// stream.
bool holds_up(HeldStream& held, const std::function<void()>& call,
              std::chrono::milliseconds patience = 100ms) {
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  auto waits = std::async(std::launch::async, call);
  EXPECT_EQ(waits.wait_for(50ms), std::future_status::timeout) << "the call itself did not wait";
  auto other = std::async(std::launch::async, [event] { return cudaEventQuery(event); });
  const bool held_up = other.wait_for(patience) == std::future_status::timeout;
  held.let_go();
  waits.get();
  EXPECT_EQ(other.get(), cudaSuccess);
  cudaEventDestroy(event);
  return held_up;
}

TEST(DriversLock, IsKeptByACopyToPageableMemory) {
  HeldStream held;
  void* gpu = nullptr;
  ASSERT_EQ(cudaMalloc(&gpu, 4), cudaSuccess);
  ASSERT_EQ(cudaMemset(gpu, 0, 4), cudaSuccess);
  float host = 1;
  EXPECT_TRUE(holds_up(held, [&] {
    EXPECT_EQ(cudaMemcpyAsync(&host, gpu, 4, cudaMemcpyDefault, held.stream()), cudaSuccess);
  }));
  EXPECT_EQ(host, 0);
  EXPECT_EQ(cudaFree(gpu), cudaSuccess);
}

TEST(DriversLock, IsKeptByALaunchIntoAFullQueue) {
  HeldStream held;
  EXPECT_TRUE(holds_up(held, [&] {
    for (int i = 0; i < 1100; ++i)
      EXPECT_EQ(cudaLaunchHostFunc(
                    held.stream(), [](void*) {}, nullptr),
                cudaSuccess);
  }));
}

TEST(DriversLock, IsNotKeptByWhatSynchronizes) {
  HeldStream held;
  EXPECT_FALSE(holds_up(
      held, [&] { EXPECT_EQ(cudaStreamSynchronize(held.stream()), cudaSuccess); }, 30s));
  HeldStream again;
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, again.stream());
  EXPECT_FALSE(holds_up(
      again, [&] { EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess); }, 30s));
  cudaEventDestroy(event);
}

TEST(DriversLock, IsNotKeptByASmallCopyFromPageableMemory) {
  HeldStream held;
  void* gpu = nullptr;
  ASSERT_EQ(cudaMalloc(&gpu, 4), cudaSuccess);
  const float host = 1;
  EXPECT_EQ(cudaMemcpyAsync(gpu, &host, 4, cudaMemcpyDefault, held.stream()), cudaSuccess);
  held.let_go();
  EXPECT_EQ(cudaStreamSynchronize(held.stream()), cudaSuccess);
  EXPECT_EQ(cudaFree(gpu), cudaSuccess);
}

}  // namespace
}  // namespace interpreter
