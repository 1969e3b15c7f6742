// The interpreter reports defects of kernels and missing edges between streams, and computes
// correct numbers without defects.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/cuda_interpreter/defects.h"
#include "tests/cuda_interpreter/floats.h"
#include "tests/cuda_interpreter/streams.h"

namespace interpreter {
namespace {

template <class T>
class Array {
 public:
  explicit Array(std::vector<T> values) : numel_(values.size()) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyDefault), cudaSuccess);
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* get() const { return data_; }
  size_t bytes() const { return numel_ * sizeof(T); }
  std::vector<T> values() const {
    std::vector<T> x(numel_);
    EXPECT_EQ(cudaMemcpy(x.data(), data_, bytes(), cudaMemcpyDefault), cudaSuccess);
    return x;
  }

 private:
  T* data_ = nullptr;
  size_t numel_;
};

// Returns the interpreter's report since the last call; empty without a defect.
std::string verdict() {
  std::string text;
  if (cudaDeviceSynchronize() != cudaSuccess) text = cudaGetErrorString(cudaErrorLaunchFailure);
  streams().forgive();
  cudaGetLastError();
  return text;
}

std::vector<float> numbers(size_t count) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = float(int(i * 37 % 101) - 50);
  return x;
}

TEST(Interpreter, GivesTheNumbersOfSumsOverABlock) {
  constexpr size_t kThreads = 256;
  const std::vector<float> in = numbers(kThreads);
  const Array<float> x(in), out(std::vector<float>(kThreads, 0));
  sums(out.get(), x.get(), Left::nothing, nullptr);
  EXPECT_EQ(verdict(), "");
  std::vector<float> far(kThreads), sum(kThreads);
  for (size_t i = 0; i < kThreads; ++i) far[i] = in[(i + 100) % kThreads];
  for (size_t i = 0; i < kThreads; ++i) sum[i] = far[i] + far[i ^ 1] + in[kThreads - 1 - i];
  for (size_t i = 0; i < kThreads; ++i) EXPECT_EQ(out.values()[i], sum[i] + sum[i ^ 1]) << i;
}

TEST(Interpreter, NoticesWhatAKernelLacks) {
  const Array<float> x(numbers(256)), out(std::vector<float>(256, 0));
  for (const auto& [left, text] : {std::pair{Left::barrier, "reads shared memory that was"},
                                   {Left::second_barrier, "without a barrier between"},
                                   {Left::warp_barrier, "without a barrier between"},
                                   {Left::copy_wait, "a copy without a wait is still bringing"},
                                   {Left::copy_barrier, "reads shared memory that was"},
                                   {Left::all_threads, "not all threads of the block come to this barrier"},
                                   {Left::all_lanes, "waits for lanes that have ended"},
                                   {Left::bounds, "byte 1024 of the nearest allocation, which has 1024"},
                                   {Left::shared_bounds, "which the block has 2048 of"},
                                   {Left::alignment, "an address that is not aligned"},
                                   {Left::first_write, "was never written"}}) {
    sums(out.get(), x.get(), left, nullptr);
    const std::string said = verdict();
    EXPECT_NE(said.find(text), std::string::npos) << text << "\nwas wanted, got\n" << said;
    EXPECT_NE(said.find("defects.cu"), std::string::npos) << said;
  }
}

class Products : public testing::Test {
 protected:
  static constexpr size_t kSide = 64;
  std::vector<float> a_ = numbers(kSide * kSide), b_ = a_;
  static std::vector<uint16_t> bits(const std::vector<float>& x) {
    std::vector<uint16_t> y;
    for (const float v : x) y.push_back(to_bf16(v));
    return y;
  }
  void SetUp() override { std::rotate(b_.begin(), b_.begin() + 19, b_.end()); }
};

TEST_F(Products, OfAWarpgroupAreThoseOfItsMatrices) {
  const Array<uint16_t> a(bits(a_)), b(bits(b_));
  const Array<float> out(std::vector<float>(kSide * kSide, 0));
  products(out.get(), a.get(), b.get(), Left::nothing, nullptr);
  EXPECT_EQ(verdict(), "");
  const std::vector<float> got = out.values();
  for (size_t row = 0; row < kSide; ++row) {
    double want[kSide] = {}, size = 0;
    for (size_t k = 0; k < kSide; ++k) {
      float first = 0;  // exact: whole numbers below 2^24
      for (size_t i = 0; i < kSide; ++i) first += a_[row * kSide + i] * b_[k * kSide + i];
      for (size_t n = 0; n < kSide; ++n)
        want[n] += double(from_bf16(to_bf16(first))) * double(b_[k * kSide + n]);
      size += std::fabs(double(first)) * 50;
    }
    for (size_t n = 0; n < kSide; ++n)
      ASSERT_NEAR(got[row * kSide + n], want[n], size * 0x1p-22) << row << " " << n;
  }
}

TEST_F(Products, LackNothingUnnoticed) {
  const Array<uint16_t> a(bits(a_)), b(bits(b_));
  const Array<float> out(std::vector<float>(kSide * kSide, 0));
  for (const auto& [left, text] : {std::pair{Left::product_wait, "an accumulator of a product in flight"},
                                   {Left::product_fence, "written without wgmma.fence since"},
                                   {Left::product_publish, "without a later fence.proxy.async"},
                                   {Left::product_order, "a product in flight reads shared memory that"},
                                   {Left::product_barrier, "a product reads shared memory that was"}}) {
    products(out.get(), a.get(), b.get(), left, nullptr);
    const std::string said = verdict();
    EXPECT_NE(said.find(text), std::string::npos) << text << "\nwas wanted, got\n" << said;
  }
}

// Two streams write, one after the other, values that a third reads, many times: without the event,
// the order is sometimes different.
int wrong_numbers(bool with_event) {
  constexpr int kNumel = 64, kTimes = 40;
  cudaStream_t first, second;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking),
      cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  int wrong = 0;
  for (int i = 0; i < kTimes; ++i) {
    const Array<float> x(std::vector<float>(kNumel, 0)), y(std::vector<float>(kNumel, 0));
    shift(x.get(), 1, kNumel, first);
    if (with_event) cudaEventRecord(event, first), cudaStreamWaitEvent(second, event, 0);
    cudaMemcpyAsync(y.get(), x.get(), x.bytes(), cudaMemcpyDefault, second);
    cudaStreamSynchronize(second);
    wrong += y.values() != std::vector<float>(kNumel, 1);
    cudaStreamSynchronize(first);
  }
  cudaEventDestroy(event), cudaStreamDestroy(first), cudaStreamDestroy(second);
  return wrong;
}

TEST(Interpreter, NoticesAnEventThatIsNotWaitedFor) {
  EXPECT_EQ(wrong_numbers(true), 0);
  EXPECT_GT(wrong_numbers(false), 0);
}

// A graph of two branches that meet: the edge between the streams decides.
int wrong_graphs(bool joined_inside) {
  constexpr int kNumel = 64, kTimes = 40;
  cudaStream_t first, second;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking),
      cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEvent_t begin, middle, end;
  for (cudaEvent_t* e : {&begin, &middle, &end}) cudaEventCreateWithFlags(e, cudaEventDisableTiming);
  const Array<float> x(std::vector<float>(kNumel, 0)), y(std::vector<float>(kNumel, 0));
  cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed);
  cudaEventRecord(begin, first), cudaStreamWaitEvent(second, begin, 0);
  shift(x.get(), 1, kNumel, first);
  if (joined_inside) cudaEventRecord(middle, first), cudaStreamWaitEvent(second, middle, 0);
  cudaMemcpyAsync(y.get(), x.get(), x.bytes(), cudaMemcpyDefault, second);
  cudaEventRecord(end, second), cudaStreamWaitEvent(first, end, 0);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first, &graph), cudaSuccess);
  cudaGraphExec_t work = nullptr;
  cudaGraphInstantiate(&work, graph, 0), cudaGraphDestroy(graph);
  int wrong = 0;
  for (int i = 0; i < kTimes; ++i) {
    cudaGraphLaunch(work, first);
    cudaStreamSynchronize(first);
    wrong += y.values() != std::vector<float>(kNumel, float(i + 1));
  }
  cudaGraphExecDestroy(work);
  for (cudaEvent_t e : {begin, middle, end}) cudaEventDestroy(e);
  cudaStreamDestroy(first), cudaStreamDestroy(second);
  return wrong;
}

TEST(Interpreter, NoticesAnEdgeThatAGraphLacks) {
  EXPECT_EQ(wrong_graphs(true), 0);
  EXPECT_GT(wrong_graphs(false), 0);
}

TEST(Interpreter, RefusesACaptureThatIsNotJoined) {
  cudaStream_t first, second;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking),
      cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEvent_t begin;
  cudaEventCreateWithFlags(&begin, cudaEventDisableTiming);
  const Array<float> x(std::vector<float>(4, 0));
  cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed);
  cudaEventRecord(begin, first), cudaStreamWaitEvent(second, begin, 0);
  shift(x.get(), 1, 4, second);
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(first, &graph), cudaSuccess);
  cudaEventDestroy(begin), cudaStreamDestroy(first), cudaStreamDestroy(second);
  cudaGetLastError();
}

TEST(Interpreter, RefusesToCaptureTheDefaultStream) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  cudaGetLastError();
}

// Calls cuStreamWaitValue32 or a similar function.
void use_word(const char* name, cudaStream_t stream, void* word, uint32_t value) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  using Use = int (*)(cudaStream_t, uintptr_t, uint32_t, unsigned);
  reinterpret_cast<Use>(found)(stream, reinterpret_cast<uintptr_t>(word), value, 0);
}

enum class Written { never, before, behind };

// Waits for a word that another stream writes.
void wait_for_word(Written when) {
  cudaStream_t waits, writes;
  cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking),
      cudaStreamCreateWithFlags(&writes, cudaStreamNonBlocking);
  void* word = nullptr;
  cudaMalloc(&word, 4), cudaMemset(word, 0, 4), cudaDeviceSynchronize();
  if (when == Written::before) use_word("cuStreamWriteValue32", writes, word, 7);
  use_word("cuStreamWaitValue32", waits, word, 7);
  if (when == Written::behind) use_word("cuStreamWriteValue32", writes, word, 7);
  cudaStreamSynchronize(waits);
  cudaStreamDestroy(waits), cudaStreamDestroy(writes), cudaFree(word);
}

TEST(InterpreterDeathTest, NamesTheStreamsOfADeadlock) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("CUDA_INTERPRETER_DEADLOCK_S", "1", 1);
  EXPECT_DEATH(wait_for_word(Written::never), "stream .* on GPU 0: a wait for the word at .* to come to 7");
}

TEST(InterpreterDeathTest, StandsStillWhereAWaitIsInOneChannelBeforeWhatItWaitsFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("CUDA_INTERPRETER_DEADLOCK_S", "1", 1);
  wait_for_word(Written::behind);
  setenv("CUDA_INTERPRETER_CHANNELS", "1", 1);
  wait_for_word(Written::before);
  EXPECT_DEATH(wait_for_word(Written::behind), "a wait for the word at .* to come to 7");
  unsetenv("CUDA_INTERPRETER_CHANNELS");
}

}  // namespace
}  // namespace interpreter
