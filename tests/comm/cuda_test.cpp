// CPU transports on GPU streams, with more data than the pinned memory between them holds.
#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "comm/device_group.h"
#include "core/build.h"
#include "device/copy.h"
#include "device/workspace.h"

namespace cleave::comm {
namespace {

std::vector<Device> gpus() {
  if constexpr (build::cuda) return {Device::cuda(0)};
  return {};
}

class CudaCollectives : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    set_cuda_environment(RanksHere::several);
    const CudaStatus status = cuda_status();
    if (status.gpus.empty()) GTEST_SKIP() << "no GPU: " << status.problem;
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaCollectives);
INSTANTIATE_TEST_SUITE_P(On, CudaCollectives, testing::ValuesIn(gpus()),
                         [](const auto&) { return std::string("cuda"); });

// A rank's stream and memory on the GPU.
class Rank {
 public:
  explicit Rank(Device device) : memory_({}, Memory::Mode::real, device), stream(device) {
    space_.lend_to(stream);
  }

  Tensor on_gpu(const std::vector<int64_t>& values) {
    buffers_.push_back(memory_.allocate(MemoryKind::device, Category::staging, DType::int64,
                                        {int64_t(values.size())}, "values"));
    std::vector<int64_t> host = values;
    copy(buffers_.back(), Tensor(host.data(), DType::int64, {int64_t(host.size())}, MemoryKind::host),
         stream);
    stream.synchronize();
    return buffers_.back();
  }

 private:
  Memory memory_;
  Workspace space_ = allocate_workspace(memory_, kCopyScratch);
  std::vector<Buffer> buffers_;

 public:
  Stream stream;
};

std::vector<int64_t> numbers(int64_t numel, int64_t factor, int64_t first = 0) {
  std::vector<int64_t> v(static_cast<size_t>(numel));
  for (size_t i = 0; i < v.size(); ++i) v[i] = (first + int64_t(i)) * factor;
  return v;
}

// Elements of a shard; shards of three ranks are cut into two pieces.
constexpr int64_t kShard = kPinnedScratch / 8 / 3 + 1000;

TEST_P(CudaCollectives, MoveAndSumGpuTensors) {
  run_ranks(3, [&](Communicator& world) {
    Rank me(GetParam());
    const int64_t rank = world.rank(), whole = 3 * kShard;
    const Tensor full = me.on_gpu(numbers(whole, 0)), shard = me.on_gpu(numbers(kShard, 7, rank * kShard));
    world.all_gather(full, shard, me.stream);
    EXPECT_EQ(to_host<int64_t>(full, me.stream), numbers(whole, 7));

    const Tensor mine = me.on_gpu(numbers(whole, rank + 1)), sum = me.on_gpu(numbers(kShard, 0));
    world.reduce_scatter(sum, mine, me.stream);
    EXPECT_EQ(to_host<int64_t>(sum, me.stream), numbers(kShard, 6, rank * kShard));
    world.all_reduce(mine, me.stream);
    EXPECT_EQ(to_host<int64_t>(mine, me.stream), numbers(whole, 6));

    const Tensor come = me.on_gpu(numbers(whole, 0));
    world.all_to_all(come, me.on_gpu(numbers(whole, rank + 1)), me.stream);
    std::vector<int64_t> blocks;
    for (int64_t r = 0; r < 3; ++r)
      for (const int64_t x : numbers(kShard, r + 1, rank * kShard)) blocks.push_back(x);
    EXPECT_EQ(to_host<int64_t>(come, me.stream), blocks);

    const Tensor told = me.on_gpu(numbers(whole, rank == 1 ? 5 : 0));
    world.broadcast(told, 1, me.stream);
    EXPECT_EQ(to_host<int64_t>(told, me.stream), numbers(whole, 5));
    if (rank == 0) world.send(told, 2, me.stream);
    if (rank == 2) world.recv(full, 0, me.stream);
    EXPECT_EQ(to_host<int64_t>(full, me.stream), numbers(whole, rank == 2 ? 5 : 7));
  });
}

TEST_P(CudaCollectives, ThrowTheReasonFromSynchronizeIfARankIsLost) {
  EXPECT_THROW(run_ranks(2,
                         [&](Communicator& world) {
                           // Fail before allocating: a free waits for all streams of the context, and those
                           // of rank 0 wait for the reason.
                           if (world.rank() == 1) fail(Exit::data, "rank 1 ends early");
                           Rank me(GetParam());
                           const Tensor x = me.on_gpu(numbers(10, 1));
                           world.all_reduce(x, me.stream);
                           me.stream.synchronize();
                         }),
               Error);
}

// Records the call number of each message.
class Numbering final : public DeviceGroup {
 public:
  explicit Numbering(std::vector<uint64_t>& numbers) : numbers_(numbers) {}
  void meet(const Waiting&) override {}
  void all_gather(const Waiting&, Tensor, Tensor, Range, Stream&) override {}
  void reduce_scatter(const Waiting&, Tensor, Tensor, Range, Stream&) override {}
  void all_reduce(const Waiting&, Tensor, Stream&) override {}
  void broadcast(const Waiting&, Tensor, int, Stream&) override {}
  void all_to_all(const Waiting&, Tensor, Tensor, Range, Stream&) override {}
  void send(const Waiting& w, Tensor, int, Stream&) override { numbers_.push_back(w.number); }
  void recv(const Waiting& w, Tensor, int, Stream&) override { numbers_.push_back(10 * w.number); }
  void open_to(const Waiting&, int, int64_t) override {}
  void open_from(const Waiting&, int, int64_t) override {}

 private:
  std::vector<uint64_t>& numbers_;
};

class NumberingTransport final : public DeviceTransport {
 public:
  explicit NumberingTransport(std::vector<uint64_t>& numbers) : numbers_(numbers) {}
  std::unique_ptr<DeviceGroup> over(std::shared_ptr<Group>, int) override {
    return std::make_unique<Numbering>(numbers_);
  }

 private:
  std::vector<uint64_t>& numbers_;
};

// The report of a late message contains its number, which must be equal at both ends.
TEST_P(CudaCollectives, NumberMessagesByPairAndDirection) {
  run_ranks(3, [&](Communicator& world) {
    if (world.rank() != 1) return;
    std::vector<uint64_t> numbers;
    Rank me(GetParam());
    const Tensor t = me.on_gpu({1, 2, 3});
    world.transport()->use(std::make_shared<NumberingTransport>(numbers));
    for (int i = 0; i < 2; ++i) world.recv(t, 0, me.stream), world.send(t, 2, me.stream);
    world.send(t, 0, me.stream), world.recv(t, 2, me.stream), world.send(t, 2, me.stream);
    EXPECT_EQ(numbers, (std::vector<uint64_t>{10, 1, 20, 2, 1, 10, 3}));
  });
}

}  // namespace
}  // namespace cleave::comm
