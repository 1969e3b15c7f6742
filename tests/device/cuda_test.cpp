// Guarantees of a CUDA rank; GPU cases are skipped if the machine has no GPU.
#include <gtest/gtest.h>

#include <atomic>

#include "core/build.h"
#include "device/copy.h"
#include "device/graphs.h"
#include "device/workspace.h"
#include "tests/scratch.h"

namespace cleave {
namespace {

TEST(Device, FailsInOneLineWithAnActionWithoutAGpu) {
  const CudaStatus status = cuda_status();
  if (!status.gpus.empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_FALSE(status.problem.empty());
  EXPECT_EQ(choose_device("auto", 0), Device{});
  EXPECT_EQ(choose_device("cpu", 0), Device{});
  for (const char* wanted : {"cuda", "cuda:0"}) try {
      choose_device(wanted, 0);
      FAIL() << wanted << " was accepted";
    } catch (const Error& e) {
      const std::string text = e.what();
      EXPECT_EQ(e.exit(), Exit::usage);
      EXPECT_NE(text.find("--device cpu"), std::string::npos) << text;
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    }
}

TEST(Device, RejectsUnknownNames) {
  for (const char* wanted : {"", "gpu", "cud", "cuda0"})
    EXPECT_THROW(choose_device(wanted, 0), Error) << wanted;
}

TEST(Memory, PlansACudaRankWithoutAGpu) {
  Memory memory({}, Memory::Mode::dry, Device::cuda(0));
  const Workspace space = allocate_workspace(memory, kKernelScratch);
  const Buffer weights =
      memory.allocate(MemoryKind::device, Category::weights, DType::bf16, {int64_t{1} << 33}, "weights");
  EXPECT_EQ(memory.live().at(MemoryKind::device, Category::weights), int64_t{1} << 34);
  EXPECT_EQ(memory.live().at(MemoryKind::device, Category::staging), kKernelScratch);
  EXPECT_EQ(memory.live().at(MemoryKind::pinned, Category::staging), kPinnedScratch);
}

TEST(Memory, HasNoWorkspaceOnACpuRank) {
  Memory memory;
  const Workspace space = allocate_workspace(memory, kKernelScratch);
  EXPECT_FALSE(space.device.defined());
  EXPECT_EQ(memory.live(), MemoryTable{});
}

TEST(Stream, DiscardModeAcceptsWorkOfACudaRankWithoutAGpu) {
  Stream stream(Stream::Mode::discard);
  bool ran = false;
  stream.enqueue([&] { ran = true; });
  copy(Tensor(nullptr, DType::fp32, {1 << 20}), Tensor(nullptr, DType::fp32, {1 << 20}), stream);
  stream.synchronize();
  EXPECT_FALSE(ran);
}

std::vector<Device> gpus() {
  if constexpr (build::cuda) return {Device::cuda(0)};
  return {};
}

class CudaStream : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const CudaStatus status = cuda_status();
    if (status.gpus.empty()) GTEST_SKIP() << "no GPU: " << status.problem;
    memory_ = std::make_unique<Memory>(MemoryLimits{}, Memory::Mode::real, GetParam());
    space_ = allocate_workspace(*memory_, kCopyScratch);
    stream_ = std::make_unique<Stream>(GetParam());
    space_.lend_to(*stream_);
  }
  void TearDown() override {
    stream_.reset();
    space_ = {};
  }
  Stream& stream() { return *stream_; }
  Buffer make(MemoryKind kind, int64_t numel) {
    return memory_->allocate(kind, Category::staging, DType::int32, {numel}, "test");
  }

  std::unique_ptr<Memory> memory_;
  Workspace space_;
  std::unique_ptr<Stream> stream_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaStream);
INSTANTIATE_TEST_SUITE_P(On, CudaStream, testing::ValuesIn(gpus()),
                         [](const auto&) { return std::string("cuda"); });

TEST_P(CudaStream, RunsTasksAndCopiesInOrder) {
  const int64_t numel = 1 << 20;
  const Buffer from = make(MemoryKind::pinned, numel), gpu = make(MemoryKind::device, numel),
               to = make(MemoryKind::pinned, numel);
  const std::span<int32_t> in = from.tensor().span<int32_t>(), out = to.tensor().span<int32_t>();
  std::atomic<int64_t> sum = 0;
  stream().enqueue([=] {
    for (int32_t i = 0; i < numel; ++i) in[size_t(i)] = i;
  });
  copy(gpu, from, stream());
  copy(to, gpu, stream());
  stream().enqueue([=, &sum] {
    for (const int32_t x : out) sum += x;
  });
  stream().synchronize();
  EXPECT_EQ(sum, numel * (numel - 1) / 2);
}

TEST_P(CudaStream, StartsWithZeroedGpuMemory) {
  const int64_t numel = (1 << 22) + 3;
  const Buffer gpu = make(MemoryKind::device, numel), back = make(MemoryKind::host, numel);
  back.tensor().span<int32_t>()[7] = 1;
  copy(back, gpu, stream());
  stream().synchronize();
  for (const int32_t x : back.tensor().span<int32_t>()) ASSERT_EQ(x, 0);
}

TEST_P(CudaStream, IsOrderedWithAWorkerInBothDirections) {
  Stream worker(Stream::Mode::worker);
  const Buffer value = make(MemoryKind::pinned, 1), gpu = make(MemoryKind::device, 1);
  int32_t* x = value.tensor().as<int32_t>();
  // More rounds than gates between the two streams.
  for (int32_t round = 1; round <= 1000; ++round) {
    worker.enqueue([x, round] { *x = *x == round - 1 ? round : -1; });
    stream().wait(worker.record());
    copy(gpu, value, stream());
    stream().enqueue([x, round] { *x = *x == round ? 0 : -1; });
    copy(value, gpu, stream());
    worker.wait(stream().record());
  }
  worker.synchronize();
  stream().synchronize();
  EXPECT_EQ(*x, 1000);
}

TEST_P(CudaStream, SynchronizeThrowsTheErrorOfATaskAndLaterTasksAreSkipped) {
  std::atomic<bool> skipped = true;
  stream().enqueue([] { fail(Exit::data, "bad"); });
  stream().enqueue([&] { skipped = false; });
  stream().record().wait();
  EXPECT_THROW(stream().synchronize(), Error);
  EXPECT_TRUE(skipped);
  stream().synchronize();
}

TEST_P(CudaStream, ThrowsTheErrorOfAnUnsynchronizedWorkerThatItWaitsFor) {
  Stream worker(Stream::Mode::worker);
  stream().wait(worker.record());
  stream().synchronize();
  worker.enqueue([] { fail(Exit::data, "bad"); });
  for (int step = 0; step < 2; ++step) {
    stream().wait(worker.record());
    EXPECT_THROW(stream().synchronize(), Error) << step;
  }
  EXPECT_THROW(worker.synchronize(), Error);
  stream().wait(worker.record());
  stream().synchronize();
}

TEST_P(CudaStream, RejectsPageableHostScratch) {
  const Buffer device = make(MemoryKind::device, 1 << 16);
  std::vector<int32_t> ordinary(1 << 16);
  expect_error(Exit::memory, {}, [&] {
    stream().lend(device, Tensor(ordinary.data(), DType::int32, {1 << 16}, MemoryKind::pinned));
  });
}

// The captured part of every stream comes after the work enqueued before the graph, and before later work of
// any of its streams, even if no task waits for another.
TEST_P(CudaStream, JoinsTheStreamsOfAGraphAtBeginAndEnd) {
  constexpr int kTimes = 16, kNumel = 1000;
  Stream other(GetParam());
  const Workspace other_space = allocate_workspace(*memory_, kCopyScratch);
  other_space.lend_to(other);
  const Buffer from = make(MemoryKind::device, kNumel), to = make(MemoryKind::device, kNumel),
               last = make(MemoryKind::device, kTimes * kNumel), spare = make(MemoryKind::device, kNumel);
  std::vector<int32_t> want(size_t(kTimes * kNumel));
  for (size_t i = 0; i < want.size(); ++i) want[i] = int32_t(i * 7);
  const Tensor values(want.data(), DType::int32, {int64_t(want.size())}, MemoryKind::host);
  const auto graphs = make_graphs({&stream(), &other}, Graphs::Use::always);
  for (int i = 0; i < kTimes; ++i) {
    const Range here = Range{0, kNumel}.shifted(i * kNumel);
    copy(from, values.slice(here), stream());
    other.wait(stream().record());
    graphs->run({8}, [&] {
      copy(spare, from, stream());
      copy(to, from, other);
    });
    stream().wait(other.record());
    copy(last.tensor().slice(here), to, stream());
    other.wait(stream().record());
  }
  EXPECT_EQ(to_host<int32_t>(last, stream()), want);
  other.synchronize();
}

// A chain over two streams: each time `from` has other values and goes to another place in `to`.
TEST_P(CudaStream, GraphAndPlainWorkHaveTheSameResults) {
  constexpr int kTimes = 24, kNumel = 1000;
  for (const Graphs::Use use : {Graphs::Use::always, Graphs::Use::measured}) {
    Stream other(GetParam());
    const Workspace other_space = allocate_workspace(*memory_, kCopyScratch);
    other_space.lend_to(other);
    const Buffer from = make(MemoryKind::device, kTimes * kNumel), between = make(MemoryKind::device, kNumel),
                 to = make(MemoryKind::device, kTimes * kNumel);
    std::vector<int32_t> want(size_t(kTimes * kNumel));
    for (size_t i = 0; i < want.size(); ++i) want[i] = int32_t(i * i + size_t(use));
    const Tensor values(want.data(), DType::int32, {int64_t(want.size())}, MemoryKind::host);
    const auto graphs = make_graphs({&stream(), &other}, use);
    Event inside;
    for (int i = 0; i < kTimes; ++i) {
      const Range here = Range{0, kNumel}.shifted(i * kNumel);
      copy(from.tensor().slice(here), values.slice(here), other);
      const Event before = other.record();
      graphs->run({7}, [&] {
        stream().wait(before);
        other.wait(inside);  // recorded in the previous graph
        copy(between, from.tensor().slice(here), stream());
        other.wait(stream().record());
        copy(to.tensor().slice(here), between, other);
        inside = other.record();
        stream().wait(inside);
      });
      if (i == 5) inside.wait();
    }
    EXPECT_EQ(to_host<int32_t>(to, other), want) << int(use);
    stream().wait(inside);
    stream().synchronize();
  }
}

TEST_P(CudaStream, StaysUsableWhenWorkOfAGraphFails) {
  const auto graphs = make_graphs({&stream()}, Graphs::Use::always);
  const Buffer gpu = make(MemoryKind::device, 4);
  const std::vector<int32_t> ones(4, 1), twos(4, 2);
  const auto give = [&](const std::vector<int32_t>& x) {
    copy(gpu, Tensor(const_cast<int32_t*>(x.data()), DType::int32, {4}, MemoryKind::host), stream());
  };
  Event inside;
  for (int i = 0; i < 3; ++i)
    EXPECT_THROW(graphs->run({0}, [&] { inside = stream().record(), fail(Exit::data, "bad"); }), Error);
  EXPECT_THROW(graphs->run({0}, [&] { stream().synchronize(); }), Error);
  EXPECT_THROW(graphs->run({0}, [&] { stream().record().wait(); }), Error);
  inside.wait();
  give(ones);
  EXPECT_EQ(to_host<int32_t>(gpu, stream()), ones);
  graphs->run({1}, [] {});
  graphs->run({1}, [] {});
  give(twos);
  EXPECT_EQ(to_host<int32_t>(gpu, stream()), twos);
}

TEST_P(CudaStream, FailsWithTheTableIfTheGpuIsOutOfMemory) {
  expect_error(Exit::memory, {"cuda:0", "staging", "planned", "largest"},
               [&] { make(MemoryKind::device, int64_t{1} << 44); });
}

}  // namespace
}  // namespace cleave
