// NCCL with a group of one: the library loads, its calls keep our contract, and streams learn of a lost
// group. cuda_process_test.cpp tests several ranks.
#include "comm/nccl/nccl.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/build.h"
#include "device/copy.h"
#include "device/workspace.h"
#include "tests/scratch.h"

namespace cleave::comm {
namespace {

std::vector<Device> nccl_gpus() {
  if constexpr (build::cuda) return {Device::cuda(0)};
  return {};
}

// A group without other ranks that can be lost.
class Alone final : public Group {
 public:
  Alone() : Group("alone", {0}, {std::chrono::seconds(20)}) {}
  void all_gather(const Waiting&, Tensor, Tensor, Range) override { never(); }
  void reduce_scatter(const Waiting&, Tensor, Tensor, Range) override { never(); }
  void all_to_all(const Waiting&, Tensor, Tensor, Range) override { never(); }
  void all_reduce(const Waiting&, Tensor) override { never(); }
  void broadcast(const Waiting&, Tensor, int) override { never(); }
  void barrier(const Waiting&) override { never(); }
  void send(const Waiting&, Tensor, int) override { never(); }
  void recv(const Waiting&, Tensor, int) override { never(); }
  std::vector<int64_t> exchange(const Waiting&, int64_t mine) override { return {mine}; }
  std::shared_ptr<Group> form(const Waiting&, const std::vector<int>&, const std::string&) override {
    never();
  }
  std::string difference(const Waiting&) override { return {}; }
  std::string lost() const override {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  void poison(const std::string& reason) override {
    std::lock_guard lock(mutex_);
    reason_ = reason;
  }
  [[noreturn]] void give_up(const Waiting&, const std::string& report, Exit exit) override {
    fail(exit, "{}", report);
  }

 private:
  [[noreturn]] static void never() { fail(Exit::internal, "a group of one has no peer"); }
  mutable std::mutex mutex_;
  std::string reason_;
};

class NcclAlone : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    const CudaStatus status = cuda_status();
    if (status.gpus.empty()) GTEST_SKIP() << "no GPU: " << status.problem;
    const NcclStatus nccl = nccl_status();
    if (!nccl.problem.empty()) GTEST_SKIP() << nccl.problem;
    memory_ = std::make_unique<Memory>(MemoryLimits{}, Memory::Mode::real, GetParam());
    space_ = allocate_workspace(*memory_, kCopyScratch);
    stream_ = std::make_unique<Stream>(GetParam());
    space_.lend_to(*stream_);
    transport_ = nccl_transport(GetParam(), {});
    gpus_ = transport_->over(group_, 0);
    gpus_->meet(waiting());
  }
  void TearDown() override { gpus_.reset(), transport_.reset(), stream_.reset(), buffers_.clear(); }

  Waiting waiting() const { return {group_->name(), group_->ranks(), 0, 1, "test", {}}; }
  Tensor on_gpu(std::vector<float> values) {
    buffers_.push_back(memory_->allocate(MemoryKind::device, Category::staging, DType::fp32,
                                         {int64_t(values.size())}, "values"));
    copy(buffers_.back(), Tensor(values.data(), DType::fp32, {int64_t(values.size())}, MemoryKind::host),
         *stream_);
    stream_->synchronize();
    return buffers_.back();
  }
  std::vector<float> values(const Tensor& t) { return to_host<float>(t, *stream_); }

  std::shared_ptr<Alone> group_ = std::make_shared<Alone>();
  std::unique_ptr<Memory> memory_;
  Workspace space_;
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> buffers_;
  std::shared_ptr<DeviceTransport> transport_;
  std::unique_ptr<DeviceGroup> gpus_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclAlone);
INSTANTIATE_TEST_SUITE_P(On, NcclAlone, testing::ValuesIn(nccl_gpus()),
                         [](const auto&) { return std::string("cuda"); });

TEST_P(NcclAlone, MovesWholeShardsAndPieces) {
  const std::vector<float> data = {1, 2, 3, 4, 5, 6, 7}, zeros(7);
  const Range all{0, 7}, piece{2, 5};
  const std::vector<float> part = {0, 0, 3, 4, 5, 0, 0};
  const Tensor from = on_gpu(data), gathered = on_gpu(zeros), scattered = on_gpu(zeros),
               gathered_part = on_gpu(zeros), scattered_part = on_gpu(zeros), sum = on_gpu(data),
               told = on_gpu(data), come = on_gpu(zeros);
  gpus_->all_gather(waiting(), gathered, from, all, *stream_);
  gpus_->all_gather(waiting(), gathered_part, from, piece, *stream_);
  gpus_->reduce_scatter(waiting(), scattered, from, all, *stream_);
  gpus_->reduce_scatter(waiting(), scattered_part, from, piece, *stream_);
  gpus_->all_to_all(waiting(), come, from, piece, *stream_);
  gpus_->all_reduce(waiting(), sum, *stream_);
  gpus_->broadcast(waiting(), told, 0, *stream_);
  EXPECT_EQ(values(gathered), data);
  EXPECT_EQ(values(gathered_part), part);
  EXPECT_EQ(values(scattered), data);
  EXPECT_EQ(values(scattered_part), part);
  EXPECT_EQ(values(come), part);
  EXPECT_EQ(values(sum), data);
  EXPECT_EQ(values(told), data);
}

TEST_P(NcclAlone, ReportsALostGroupToItsStreamsAndLaterCalls) {
  const Tensor x = on_gpu({1, 2, 3});
  gpus_->all_reduce(waiting(), x, *stream_);
  stream_->synchronize();
  group_->poison("rank 5 is gone");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  for (auto call : {std::function<void()>([&] { stream_->synchronize(); }),
                    std::function<void()>([&] { gpus_->all_reduce(waiting(), x, *stream_); })})
    expect_error(Exit::rank_lost, {"rank 5 is gone"}, [&] { call(); });
}

}  // namespace
}  // namespace cleave::comm
