// Ranks as processes with GPUs, shared if there are fewer: over the automatic transport, CUDA IPC and host
// memory. Only the children use CUDA, which does not survive a fork.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "comm/device_group.h"
#include "comm/gpu_transport.h"
#include "core/build.h"
#include "device/copy.h"
#include "device/workspace.h"
#include "tests/comm/collective_values.h"
#include "tests/comm/collectives.h"
#include "tests/comm/processes.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using test::Child, test::Ended;

constexpr int kNoGpu = 77;

std::vector<std::string> routes() {
  if constexpr (build::cuda) return {"auto", "ipc", "host"};
  return {};
}

// GPU memory and stream of a test rank.
class Rank {
 public:
  explicit Rank(Device device) : memory_({}, Memory::Mode::real, device), stream(device) {
    space_.lend_to(stream);
  }
  Device device() const { return memory_.device(); }
  // Small integers, so that sums are exact in any order.
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
  Tensor put(test::Bytes bytes, DType dtype) {
    buffers_.push_back(memory_.allocate(MemoryKind::device, Category::staging, dtype,
                                        {int64_t(bytes.size()) / size_of(dtype)}, "values"));
    const Tensor there = buffers_.back();
    if (there.numel() > 0) copy(there, Tensor(bytes.data(), dtype, there.shape(), MemoryKind::host), stream);
    stream.synchronize();
    return there;
  }
  void expect_bits(const Tensor& got, const test::Bytes& want, const std::string& what) {
    test::Bytes host(want.size());
    if (got.numel() > 0) copy(Tensor(host.data(), got.dtype(), got.shape(), MemoryKind::host), got, stream);
    stream.synchronize();
    test::same(host, want, what);
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

  // Results of the ranks; skips the test if the children found no GPU.
  static std::vector<Ended> run(int size, std::chrono::milliseconds timeout, const std::string& route,
                                const Body& body, std::chrono::seconds limit = 300s) {
    const int port = test::free_port();
    std::vector<Child> children;
    for (int r = 0; r < size; ++r)
      children.emplace_back([&, r] {
        set_cuda_environment(RanksHere::several);
        const CudaStatus status = cuda_status();
        if (status.gpus.empty()) {
          fprintf(stderr, "%s\n", status.problem.c_str());
          return kNoGpu;
        }
        ConnectOptions options;
        options.comm.timeout = timeout;
        const auto world = connect(test::rank_of(r, size, port), options);
        const Device device = Device::cuda(r % int(status.gpus.size()));
        const std::string line =
            connect_gpus(world->communicator(), {device}, parse_gpu_transport(route)).line;
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

TEST_P(CudaProcesses, MoveAndSumGpuTensors) {
  const int64_t shard = 100'003;
  const auto ends = run(3, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    const int rank = world.rank();
    const int64_t whole = 3 * shard;
    const CommBytes before = world.bytes();
    world.transport()->open(true);
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
    EXPECT_ON_RANK(world.bytes() - before == want, "other bytes were counted");
    const auto pair = world.split({rank / 2, rank % 2, rank == 2 ? 1 : 2}, "pair");
    const Tensor x = me.make(10, 1);
    pair->all_reduce(x, me.stream);
    me.expect(x, Rank::numbers(10, pair->size()), "all_reduce of a part");
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

// Sums that are inexact in every float type, from empty to several slots of a segment.
TEST_P(CudaProcesses, GiveTheBitsOfCpuTransports) {
  for (const int size : {2, 3}) {
    if (size > 2 && GetParam() == "auto") continue;  // NCCL adds more than two in its own order
    const auto ends = run(size, 60s, GetParam(), [&](Communicator& world, Rank& me) {
      const int rank = world.rank();
      for (const DType t : {DType::fp32, DType::bf16, DType::fp16, DType::fp64, DType::int32, DType::int64})
        for (const int64_t n :
             {int64_t{1}, int64_t{1001}, t == DType::fp32 ? int64_t{2'500'001} : int64_t{70'003}}) {
          const std::string what = fmt::format("{} {} on {} ranks: ", n, name_of(t), size);
          const Tensor sum = me.put(test::input(t, rank, n), t);
          world.all_reduce(sum, me.stream);
          me.expect_bits(sum, test::expected_sum(t, size, n), what + "all_reduce");
          const Tensor most = me.put(test::input(t, rank, n), t);
          world.all_reduce(most, me.stream, {.by = Reduction::max});
          me.expect_bits(most, test::expected_max(t, size, n), what + "all_reduce of the largest");
          const Tensor terms = me.put(test::input(t, rank, n * size), t),
                       mine = terms.slice({rank * n, rank * n + n});
          const Tensor shard = me.put(test::input(t, 9, n), t);
          world.reduce_scatter(shard, terms, me.stream);
          me.expect_bits(shard, test::expected_sum(t, size, n, rank * n), what + "reduce_scatter");
          world.reduce_scatter(mine, terms, me.stream, {.max_numel = n});
          me.expect_bits(mine, test::expected_sum(t, size, n, rank * n), what + "reduce_scatter in place");
          world.all_gather(terms, mine, me.stream, {.max_numel = n});
          const Tensor own = me.put(test::input(t, rank, n), t);
          world.all_gather(terms, own, me.stream);
          me.expect_bits(terms, test::expected_gather(t, size, n), what + "all_gather");
          const Tensor come = me.put(test::input(t, 9, n * size), t);
          world.all_to_all(come, me.put(test::input(t, rank, n * size), t), me.stream);
          test::Bytes want;
          for (int r = 0; r < size; ++r) {
            const test::Bytes theirs = test::input(t, r, n, rank * n);
            want.insert(want.end(), theirs.begin(), theirs.end());
          }
          me.expect_bits(come, want, what + "all_to_all");
        }
    });
    if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
    for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
  }
}

// Two streams of a rank alternate in one group, with and without waits between them.
TEST_P(CudaProcesses, KeepTheOrderOfCallsAcrossStreams) {
  const auto ends = run(2, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    Rank other(me.device());
    const Tensor x = me.make(3'000'000, world.rank() + 1);
    for (int i = 0; i < 6; ++i) {
      Stream &now = i % 2 ? other.stream : me.stream, &next = i % 2 ? me.stream : other.stream;
      world.all_reduce(x, now, {.max_numel = 1'000'000});
      next.wait(now.record());
    }
    std::vector<float> want = Rank::numbers(x.numel(), 3);
    for (float& v : want) v *= 32;
    me.expect(x, want, "six sums");
    const Tensor y = me.make(20'000, world.rank() + 1), z = other.make(30'000, world.rank() + 5);
    for (int i = 0; i < 12; ++i) world.all_reduce(i % 3 ? z : y, i % 3 ? other.stream : me.stream);
    me.expect(y, Rank::numbers(y.numel(), 3 * 8), "four sums of one stream");
    other.expect(z, Rank::numbers(z.numel(), 11 * 128), "eight sums of the other");
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

// Each rank's GPU may reach the calls of two groups in any order.
TEST_P(CudaProcesses, CompleteCallsOfSeveralGroupsThatAreInFlight) {
  const auto ends = run(2, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    Rank other(me.device()), before(me.device());
    const auto twin = world.duplicate("twin");
    const Tensor x = me.make(100, world.rank() + 1), y = other.make(100, world.rank() + 1);
    const Tensor long_from = before.make(10'000'000, 1), long_to = before.make(10'000'000, 0);
    world.all_reduce(x, me.stream), twin->all_reduce(y, other.stream);
    me.stream.synchronize(), other.stream.synchronize();
    for (int i = 0; i < 8; ++i) copy(long_to, long_from, before.stream);
    for (Stream* s : {&me.stream, &other.stream}) s->wait(before.stream.record());
    for (int i = 0; i < 11; ++i) world.all_reduce(x, me.stream), twin->all_reduce(y, other.stream);
    me.expect(x, Rank::numbers(x.numel(), 3 * 2048), "sums of one group");
    other.expect(y, Rank::numbers(y.numel(), 3 * 2048), "sums of the other");
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

// A larger message is sent while smaller ones are in flight.
TEST_P(CudaProcesses, KeepTheOrderOfMessagesThatGrow) {
  const auto ends = run(2, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    std::vector<Tensor> messages;
    for (const int64_t n : {int64_t{10}, int64_t{700'000}, int64_t{10}, int64_t{2'000'000}})
      messages.push_back(me.make(n, world.rank() == 0 ? 7 : 0));
    for (const Tensor& t : messages)
      world.rank() == 0 ? world.send(t, 1, me.stream) : world.recv(t, 0, me.stream);
    for (const Tensor& t : messages) me.expect(t, Rank::numbers(t.numel(), 7), "message");
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

// Memory of the transport's allocator is registered during calls, and the group works after it is freed.
TEST_P(CudaProcesses, UseRegisteredBuffersUntilTheyAreTakenBack) {
  setenv("CLEAVE_NCCL_REGISTER", "on", 1);
  const int64_t shard = 100'000;
  const auto ends = run(3, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    TransportAccess& own = *world.transport();
    const DeviceAllocator allocator = own.allocator();
    if (GetParam() != "auto") EXPECT_ON_RANK(!allocator, "{} has an allocator", GetParam());
    if (!allocator) return;
    Memory memory({}, Memory::Mode::real, me.device(), {int64_t{2} << 20, allocator});
    const auto make = [&](int64_t numel) {
      return memory.allocate(MemoryKind::device, Category::gathered, DType::fp32, {numel}, "lent");
    };
    const auto rank = world.rank();
    for (int times = 0; times < 2; ++times) {
      const Buffer whole = make(3 * shard), mine = make(shard);
      me.expect(mine, Rank::numbers(shard, 0), "zeroed memory");
      own.open(true), own.lend(memory.moved());
      copy(mine, me.make(shard, 7, rank * shard), me.stream);
      world.all_gather(whole, mine, me.stream);
      me.expect(whole, Rank::numbers(3 * shard, 7), "all_gather");
      world.reduce_scatter(mine, whole, me.stream);
      me.expect(mine, Rank::numbers(shard, 21, rank * shard), "reduce_scatter");
      own.take_back();
    }
    const Tensor x = me.make(shard, rank + 1);
    world.all_reduce(x, me.stream);
    me.expect(x, Rank::numbers(shard, 6), "all_reduce after take_back");
  });
  unsetenv("CLEAVE_NCCL_REGISTER");
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

TEST_P(CudaProcesses, SendWithoutWaitingAsAPipelineDoes) {
  const auto ends = run(2, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    const int64_t n = 50'000;
    const auto forward = world.duplicate("forward"), back = world.duplicate("back");
    forward->transport()->open(0, 1, n * 4), back->transport()->open(1, 0, n * 4);
    const Tensor got = me.make(n, 0);
    // One forward, one backward: each rank sends before it receives, which would hang without channel
    // capacity.
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

// No wait separates the messages: each may reach the channel while its predecessor is in flight, or leave it
// before the predecessor was written.
TEST_P(CudaProcesses, KeepMessagesApartThatFollowEachOther) {
  const auto ends = run(2, 30s, GetParam(), [&](Communicator& world, Rank& me) {
    constexpr int kMessages = 12;
    const int64_t n = 1'000'000;
    const auto forward = world.duplicate("forward");
    std::vector<Tensor> values, messages;
    for (int i = 0; i < kMessages; ++i)
      values.push_back(me.make(n, i + 1)), messages.push_back(me.make(n, 0));
    me.stream.synchronize();
    for (int i = 0; i < kMessages; ++i)
      if (world.rank() == 0) {
        copy(messages[size_t(i)], values[size_t(i)], me.stream);
        forward->send(messages[size_t(i)], 1, me.stream);
      } else {
        forward->recv(messages[size_t(i)], 0, me.stream);
      }
    for (int i = 0; i < kMessages; ++i) me.expect(messages[size_t(i)], Rank::numbers(n, i + 1), "message");
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  for (const Ended& e : ends) EXPECT_EQ(e.exit, 0) << e.message;
}

TEST_P(CudaProcesses, EndTogetherWhenOneIsKilled) {
  constexpr auto kTimeout = 20s;
  const auto begin = std::chrono::steady_clock::now();
  const auto ends = run(2, kTimeout, GetParam(), [&](Communicator& world, Rank& me) {
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
  // Its deadlines at start, call and end.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 3 * kTimeout);
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

// The launching thread is blocked inside CUDA and holds the lock that other CUDA calls need.
TEST_P(CudaProcesses, NameItAlsoIfTheStreamIsFull) {
  const auto ends = run(2, 4s, GetParam(), [&](Communicator& world, Rank& me) {
    const Tensor x = me.make(1000, 1), y = me.make(1000, 0);
    world.all_reduce(x, me.stream);
    me.stream.synchronize();
    if (world.rank() == 1) std::this_thread::sleep_for(10s);
    world.all_reduce(x, me.stream, {.what = "gradients of h.3"});
    for (int i = 0; i < 3000; ++i) copy(y, x, me.stream);
    me.stream.synchronize();
  });
  if (no_gpu(ends)) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(ends[0].exit, int(Exit::rank_lost)) << ends[0].message;
  EXPECT_TRUE(test::has(ends[0].message, "gradients of h.3")) << ends[0].message;
}

}  // namespace
}  // namespace cleave::comm
