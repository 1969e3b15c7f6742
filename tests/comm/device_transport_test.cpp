// A group's use of its transport between GPUs, without a GPU.
#include "comm/device_group.h"

#include <fstream>

#include "comm/rendezvous/rank_process.h"
#include "comm/traced.h"
#include "core/philox.h"
#include "tests/comm/collectives.h"

namespace cleave::comm {
namespace {

using test::error_of, test::has;

// Records the calls of the transport; meets unless it should fail.
struct Told {
  Exit meeting = Exit::ok;
  int met = 0;
  std::vector<size_t> lent = {};
  std::vector<std::pair<int, int64_t>> opened = {};  // peer (negative for receives) and bytes
};

class TalkingGroup final : public DeviceGroup {
 public:
  explicit TalkingGroup(Told& told) : told_(told) {}
  void meet(const Waiting& w) override {
    require(told_.meeting == Exit::ok, told_.meeting, "{} cannot meet", w.group);
    ++told_.met;
  }
  void lend(const Waiting&, std::span<const Tensor> buffers) override {
    told_.lent.push_back(buffers.size());
  }
  void take_back() override { told_.lent.push_back(0); }
  void all_gather(const Waiting&, Tensor, Tensor, Range, Stream&) override { never(); }
  void reduce_scatter(const Waiting&, Tensor, Tensor, Range, Stream&) override { never(); }
  void all_reduce(const Waiting&, Tensor, Stream&) override { never(); }
  void broadcast(const Waiting&, Tensor, int, Stream&) override { never(); }
  void all_to_all(const Waiting&, Tensor, Tensor, Range, Stream&) override { never(); }
  void send(const Waiting&, Tensor, int, Stream&) override { never(); }
  void recv(const Waiting&, Tensor, int, Stream&) override { never(); }
  void open_to(const Waiting&, int to, int64_t bytes) override { told_.opened.push_back({to, bytes}); }
  void open_from(const Waiting&, int from, int64_t bytes) override { told_.opened.push_back({-from, bytes}); }

 private:
  [[noreturn]] static void never() { fail(Exit::internal, "memory of the host went over a GPU's transport"); }
  Told& told_;
};

MemoryBlock nothing(Device, int64_t) { return {}; }

class TalkingTransport final : public DeviceTransport {
 public:
  explicit TalkingTransport(Told& told) : told_(told) {}
  std::unique_ptr<DeviceGroup> over(std::shared_ptr<Group>, int) override {
    return std::make_unique<TalkingGroup>(told_);
  }
  DeviceAllocator allocator() const override { return nothing; }

 private:
  Told& told_;
};

int32_t sum_over(Communicator& ranks) {
  Stream stream;
  int32_t sum = 1;
  ranks.all_reduce(Tensor(&sum, DType::int32, {1}), stream);
  return sum;
}

TEST(DeviceTransport, ThatCannotMeetIsSkippedWithItsReason) {
  run_ranks(2, [](Communicator& world) {
    Told told{.meeting = Exit::usage};
    EXPECT_EQ(world.transport()->try_to_use(std::make_shared<TalkingTransport>(told)), "world cannot meet");
    world.transport()->lend({Tensor()});
    EXPECT_TRUE(told.lent.empty());
    EXPECT_EQ(sum_over(world), 2);
    told.meeting = Exit::ok;
    EXPECT_EQ(world.transport()->try_to_use(std::make_shared<TalkingTransport>(told)), "");
    EXPECT_EQ(told.met, 1);
    EXPECT_EQ(told.lent, std::vector<size_t>{1}) << "buffers registered before the meeting";
    EXPECT_EQ(sum_over(world), 2) << "the host's memory keeps its own way";
  });
}

TEST(DeviceTransport, IsOpenedOnceByTheRanksThatItConnects) {
  run_ranks(3, [](Communicator& world) {
    Told told;
    TransportAccess& own = *world.transport();
    own.open(true), own.open(1, 2, 10);
    EXPECT_EQ(told.met, 0) << "no GPUs are connected";
    own.use(std::make_shared<TalkingTransport>(told));
    own.open(false), own.open(false);
    EXPECT_EQ(told.met, 1);
    own.open(1, 2, 64);
    using Opened = std::vector<std::pair<int, int64_t>>;
    EXPECT_EQ(told.opened, world.rank() == 1   ? Opened({{2, 64}})
                           : world.rank() == 2 ? Opened({{-1, 64}})
                                               : Opened());
  });
}

TEST(DeviceTransport, ThatLosesARankDuringItsMeetingEndsTheJob) {
  run_ranks(2, [](Communicator& world) {
    Told told{.meeting = Exit::rank_lost};
    const std::string lost = error_of(
        [&] { world.transport()->try_to_use(std::make_shared<TalkingTransport>(told)); }, Exit::rank_lost);
    EXPECT_TRUE(has(lost, "cannot meet")) << lost;
  });
}

TEST(DeviceTransport, IsToldOfRegisteredBuffersUntilTheyAreTakenBack) {
  run_ranks(2, [](Communicator& world) {
    Told told;
    EXPECT_EQ(world.transport()->try_to_use(std::make_shared<TalkingTransport>(told)), "");
    EXPECT_TRUE(told.lent.empty()) << "no buffers";
    world.transport()->lend({Tensor(), Tensor()});
    world.transport()->take_back();
    EXPECT_EQ(told.lent, (std::vector<size_t>{2, 0}));
  });
  EXPECT_EQ(self_communicator()->transport(), nullptr) << "a single rank has no transport";
}

TEST(DeviceTransport, NamesItsAllocator) {
  run_ranks(2, [](Communicator& world) {
    Told told;
    EXPECT_EQ(world.transport()->allocator(), nullptr) << "no GPUs are connected";
    world.transport()->use(std::make_shared<TalkingTransport>(told));
    EXPECT_EQ(world.transport()->allocator(), nothing);
    EXPECT_EQ(world.split({0, world.rank(), 2}, "all")->transport()->allocator(), nothing);
  });
}

TEST(DeviceTransport, IsReachedThroughAWrappingCommunicator) {
  run_ranks(3, [](Communicator& world) {
    Told told;
    Trace trace;
    const auto traced = traced_communicator(world, trace);
    ASSERT_EQ(traced->transport(), world.transport());
    EXPECT_EQ(traced->transport()->exchange(10 + world.rank(), "a test"), (std::vector<int64_t>{10, 11, 12}));
    const auto half = traced->split({0, world.rank(), 3}, "part");
    EXPECT_EQ(half->transport()->exchange(20 + world.rank(), "a test"), (std::vector<int64_t>{20, 21, 22}));
    EXPECT_EQ(traced->transport()->try_to_use(std::make_shared<TalkingTransport>(told)), "");
    traced->transport()->lend({Tensor()});
    traced->transport()->take_back();
    EXPECT_EQ(told.lent, (std::vector<size_t>{1, 0}));
  });
}

TEST(RankProcess, NumbersAHostByTheIdentityOfRanksThatShareMemory) {
  const RankProcess here = this_process("10.0.0.1");
  EXPECT_EQ(here.host_id, host_id());
  EXPECT_EQ(host_number(), int64_t(hash_name(here.host_id)));
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  EXPECT_TRUE(here.host_id.starts_with(boot + "|")) << here.host_id;
}

}  // namespace
}  // namespace cleave::comm
