// Ranks as processes with GPUs, which they share when there are fewer: over NCCL where it can, else through
// host memory. Only the children use CUDA, which does not survive a fork.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <thread>

#include "comm/gpu_transport.h"
#include "core/build.h"
#include "device/copy.h"
#include "device/workspace.h"
#include "tests/comm/collectives.h"
#include "tests/comm/processes.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;
using test::Child, test::Ended;

constexpr int kNoGpu = 77;

std::vector<std::string> routes() {
  if constexpr (build::cuda) return {"auto", "host"};
  return {};
}

// What a rank of a test has on its GPU.
class Rank {
 public:
  explicit Rank(Device device) : memory_({}, Memory::Mode::real, device), stream(device) {
    space_.lend_to(stream);
  }
  // Small whole numbers, so that sums are exact in any order.
  Tensor make(int64_t numel, int factor, int64_t first = 0) {
    buffers_.push_back(
        memory_.allocate(MemoryKind::device, Category::staging, DType::fp32, {numel}, "values"));
    std::vector<float> host = numbers(numel, factor, first);
    copy(buffers_.back(), Tensor(host.data(), DType::fp32, {numel}, MemoryKind::host), stream);
    stream.synchronize();
    return buffers_.back();
  }
  static std::vector<float> numbers(int64_t numel, int factor, int64_t first = 0) {
    std::vector<float> v(static_cast<size_t>(numel));
    for (size_t i = 0; i < v.size(); ++i) v[i] = float((first + int64_t(i)) % 1000 * factor);
    return v;
  }
  void expect(const Tensor& got, const std::vector<float>& want, const char* what) {
    EXPECT_ON_RANK(to_host<float>(got, stream) == want, "{} differs", what);
  }

 private:
  Memory memory_;
  Workspace space_ = allocate_workspace(memory_, kCopyScratch);
  std::vector<Buffer> buffers_;

 public:
  Stream stream;
};

class CudaProcesses : public testing::TestWithParam<std::string> {
 protected:
  using Body = std::function<void(Communicator&, Rank&)>;

  // The ranks' ends; skips the test where the children found no GPU.
  static std::vector<Ended> run(int size, std::chrono::milliseconds timeout, const std::string& route,
                                const Body& body, std::chrono::seconds limit = 60s) {
    const int port = test::free_port();
    std::vector<Child> children;
    for (int r = 0; r < size; ++r)
      children.emplace_back([&, r] {
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
        const CudaStatus status = cuda_status();
        if (status.gpus.empty()) {
          fprintf(stderr, "%s\n", status.problem.c_str());
          return kNoGpu;
        }
        ConnectOptions options;
        options.comm.timeout = timeout;
        const auto world = connect(test::rank_of(r, size, port), options);
        const Device device = Device::cuda(r % int(status.gpus.size()));
        const std::string line = connect_gpus(world->communicator(), device, parse_gpu_transport(route));
        if (r == 0) fprintf(stderr, "%s\n", line.c_str());
        Rank me(device);
        body(world->communicator(), me);
        world->leave();
        return 0;
      });
    std::vector<Ended> ends;
    for (Child& c : children) ends.push_back(c.wait(limit));
    return ends;
  }
  static bool no_gpu(const std::vector<Ended>& ends) {
    return std::any_of(ends.begin(), ends.end(), [](const Ended& e) { return e.exit == kNoGpu; });
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaProcesses);
INSTANTIATE_TEST_SUITE_P(On, CudaProcesses, testing::ValuesIn(routes()),
                         [](const auto& p) { return p.param + "_cuda"; });

TEST_P(CudaProcesses, MoveAndSumWhatIsOnTheirGpus) {
  const int64_t shard = 100'003;
  const auto ends = run(3, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    const int rank = world.rank();
    const int64_t whole = 3 * shard;
    for (int64_t most : {Call::kWhole, int64_t{9001}}) {
      const Call call{.what = "test", .max_numel = most};
      const Tensor full = me.make(whole, 0), sum = me.make(shard, 0), mine = me.make(whole, rank + 1);
      world.all_gather(full, me.make(shard, 7, rank * shard), me.stream, call);
      me.expect(full, Rank::numbers(whole, 7), "all_gather");
      world.reduce_scatter(sum, mine, me.stream, call);
      me.expect(sum, Rank::numbers(shard, 6, rank * shard), "reduce_scatter");
      world.all_reduce(mine, me.stream, call);
      me.expect(mine, Rank::numbers(whole, 6), "all_reduce");
      const Tensor told = me.make(whole, rank == 1 ? 5 : 0);
      world.broadcast(told, 1, me.stream, call);
      me.expect(told, Rank::numbers(whole, 5), "broadcast");
    }
    CommBytes want;
    want[Collective::all_gather] = want[Collective::reduce_scatter] = 2 * 2 * shard * 4;
    want[Collective::all_reduce] = 2 * 4 * shard * 4;
    if (rank == 1) want[Collective::broadcast] = 2 * 3 * shard * 4;
    EXPECT_ON_RANK(world.bytes() == want, "other bytes were counted");
    const auto pair = world.split({rank / 2, rank % 2, rank == 2 ? 1 : 2}, "pair");
    const Tensor x = me.make(10, 1);
    pair->all_reduce(x, me.stream);
    me.expect(x, Rank::numbers(10, pair->size()), "all_reduce of a part");
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

TEST_P(CudaProcesses, SendWithoutWaitingAsAPipelineDoes) {
  const auto ends = run(2, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    const int64_t n = 50'000;
    const auto forward = world.duplicate("forward"), back = world.duplicate("back");
    const Tensor got = me.make(n, 0);
    // One forward, one backward: each sends before it receives, which a channel without room would not end.
    for (int micro = 0; micro < 8; ++micro) {
      const Tensor t = me.make(n, micro + 1 + world.rank());
      if (world.rank() == 0) {
        forward->send(t, 1, me.stream);
        if (micro > 0) back->recv(got, 1, me.stream), me.expect(got, Rank::numbers(n, micro + 1), "gradient");
      } else {
        forward->recv(got, 0, me.stream), me.expect(got, Rank::numbers(n, micro + 1), "activation");
        back->send(t, 0, me.stream);
      }
    }
    if (world.rank() == 0)
      back->recv(got, 1, me.stream), me.expect(got, Rank::numbers(n, 9), "last gradient");
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

TEST_P(CudaProcesses, EndTogetherWhenOneIsKilled) {
  const auto begin = std::chrono::steady_clock::now();
  const auto ends = run(2, 20s, GetParam(), [&](Communicator& world, Rank& me) {
    const Tensor x = me.make(1000, 1);
    world.all_reduce(x, me.stream, {.what = "gradients"});
    me.stream.synchronize();
    if (world.rank() == 1) raise(SIGKILL);
    world.all_reduce(x, me.stream, {.what = "gradients"});
    me.stream.synchronize();
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(ends[1].exit, -SIGKILL);
  EXPECT_EQ(ends[0].exit, int(Exit::rank_lost)) << ends[0].message;
  EXPECT_TRUE(test::has(ends[0].message, "rank 1")) << ends[0].message;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 50s);
}

TEST_P(CudaProcesses, NameTheCallThatARankDoesNotJoin) {
  const auto ends = run(2, 8s, GetParam(), [&](Communicator& world, Rank& me) {
    const Tensor x = me.make(1000, 1);
    world.all_reduce(x, me.stream);
    me.stream.synchronize();
    if (world.rank() == 1) std::this_thread::sleep_for(14s);
    world.all_reduce(x, me.stream, {.what = "gradients of h.3"});
    me.stream.synchronize();
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(ends[0].exit, int(Exit::rank_lost)) << ends[0].message;
  for (const char* part : {"all_reduce of 1000 fp32", "gradients of h.3", "'world'"})
    EXPECT_TRUE(test::has(ends[0].message, part)) << ends[0].message;
}

}  // namespace
}  // namespace cleave
