// The shm and Gloo transports between real processes, and behavior after failures.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <numeric>
#include <thread>

#include "comm/mesh.h"
#include "comm/order.h"
#include "comm/rendezvous/rendezvous.h"
#include "tests/comm/collective_suite.h"
#include "tests/comm/processes.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using test::Child;
using test::Ended;
using test::error_of;
using test::has;
using test::start_ranks;
using test::wait_all;

ConnectOptions over(TransportChoice transport, std::chrono::milliseconds timeout = 20s) {
  ConnectOptions options;
  options.transport = transport;
  options.comm.timeout = timeout;
  options.rendezvous_timeout = 20s;
  return options;
}

test::RunRanks processes(TransportChoice transport) {
  return [=](int size, const test::Body& body, const CommOptions&) {
    auto children = start_ranks(size, over(transport), [&](World& world) { body(world.communicator()); });
    for (const Ended& e : wait_all(children)) ASSERT_EQ(e.exit, 0) << e.message;
  };
}

const test::Transport kShm{"shm", processes(TransportChoice::shm), {2, 3, 5}, 300'000};
const test::Transport kGloo{"gloo", processes(TransportChoice::gloo), {2, 3}, 300'000, true};
const test::Transport* const kProcessTransports[] = {&kShm, &kGloo};
INSTANTIATE_TEST_SUITE_P(, Transports, testing::ValuesIn(kProcessTransports), test::name_of_transport);
INSTANTIATE_TEST_SUITE_P(, TransportsAndTypes,
                         testing::Combine(testing::ValuesIn(kProcessTransports),
                                          testing::ValuesIn(test::kTypes)),
                         test::name_of_transport_and_type);

const TransportChoice kBoth[] = {TransportChoice::shm, TransportChoice::gloo};

// Number of Cleave's names in /dev/shm; must always be 0.
int names_in_dev_shm() {
  int names = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    names += has(entry.path().filename().string(), "cleave");
  return names;
}

TEST(Processes, GetTheSameBitsFromEveryTransport) {
  // Checksum of sums of inexact numbers, from four ranks on shm, Gloo and threads.
  const auto sum = [](Communicator& c) {
    std::vector<float> x(100'003);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / float(i % 977 + size_t(c.rank()) + 1);
    Stream stream;
    c.all_reduce(Tensor(x.data(), DType::fp32, {int64_t(x.size())}), stream);
    uint32_t mix = 0;
    for (float v : x) mix = mix * 31 + std::bit_cast<uint32_t>(v);
    return mix;
  };
  std::atomic<uint32_t> want{0};
  run_ranks(4, [&](Communicator& c) { want = sum(c); });
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(4, over(transport), [&](World& world) {
      EXPECT_ON_RANK(sum(world.communicator()) == want, "another sum");
    });
    for (const Ended& e : wait_all(children)) EXPECT_EQ(e.exit, 0) << e.message;
  }
}

TEST(Processes, BuildAMeshOfGroups) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(4, over(transport), [](World& world) {
      Communicator& c = world.communicator();
      const Mesh mesh(c, {.pipe = 2, .data = 1, .tensor = 2});
      Stream stream;
      int32_t x = c.rank();
      mesh.tensor->all_reduce(Tensor(&x, DType::int32, {1}), stream);
      mesh.pipe->all_reduce(Tensor(&x, DType::int32, {1}), stream);
      EXPECT_ON_RANK(x == 6, "sum over both axes is {}", x);
    });
    for (const Ended& e : wait_all(children)) EXPECT_EQ(e.exit, 0) << e.message;
  }
}

// A rank may have all its connections, and drop the group, while others still connect.
TEST(Processes, FormGroupsThatSomeRanksDropAtOnce) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(4, over(transport), [](World& world) {
      Stream stream;
      for (int i = 0; i < 40; ++i) {
        auto group = world.communicator().duplicate("short");
        if (world.info().rank == i % 4) group.reset();
      }
      world.communicator().barrier(stream);
    });
    for (const Ended& e : wait_all(children)) EXPECT_EQ(e.exit, 0) << e.message;
  }
}

TEST(Processes, ReportTheMissingRankAtTheDeadline) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(3, over(transport, 300ms), [](World& world) {
      Stream stream;
      int64_t x = 1;
      if (world.info().rank == 1) return std::this_thread::sleep_for(3s);
      world.communicator().all_reduce(Tensor(&x, DType::int64, {1}), stream, {.what = "loss"});
    });
    const Ended first = children[0].wait(), third = children[2].wait();
    EXPECT_EQ(first.exit, int(Exit::rank_lost));
    EXPECT_EQ(third.exit, int(Exit::rank_lost));
    // The first rank reports; the other repeats this report or makes an equal one.
    const std::string& report = has(first.message, "deadline") ? first.message : third.message;
    EXPECT_TRUE(has(report, "all_reduce of 1 int64 (loss), call 1 of group 'world'")) << report;
    EXPECT_TRUE(has(report, "missing: rank 1.")) << report;
  }
}

// Any rank may find the hung one, including rank 0, which serves the rendezvous; no rank waits for it again.
// Ranks end within two seconds of the deadline on an idle machine. Waiting twice would exceed the asserted
// limit.
TEST(Processes, EndSoonAfterTheDeadlineIfAnyRankHangs) {
  constexpr auto kDeadline = 5s;
  struct Job {
    std::vector<Child> ranks;
    size_t hung;
    Clock::time_point since;
  };
  std::vector<Job> jobs;
  for (TransportChoice transport : kBoth)
    for (size_t hung = 0; hung < 3; ++hung)
      jobs.push_back({start_ranks(3, over(transport, kDeadline),
                                  [](World& world) {
                                    for (Stream stream;; std::this_thread::sleep_for(5ms))
                                      world.communicator().barrier(stream);
                                  }),
                      hung,
                      {}});
  std::this_thread::sleep_for(1s);
  for (Job& job : jobs) {
    job.ranks[job.hung].signal(SIGSTOP);
    job.since = Clock::now();
  }
  for (Job& job : jobs) {
    for (size_t r = 0; r < 3; ++r) {
      if (r == job.hung) continue;
      const Ended e = job.ranks[r].wait();
      EXPECT_EQ(e.exit, int(Exit::rank_lost)) << e.message;
      // On a busy machine, a rank that arrived late may also be named.
      const std::string missing =
          e.message.substr(std::min(e.message.find("missing: rank"), e.message.size()));
      EXPECT_TRUE(has(missing.substr(0, missing.find('.')), std::to_string(job.hung)))
          << r << ": " << e.message;
    }
    EXPECT_LT(Clock::now() - job.since, kDeadline + 4s) << "rank " << job.hung;
  }
}

TEST(Processes, DetectAKilledRankLongBeforeTheDeadline) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(4, over(transport, 60s), [](World& world) {
      Stream stream;
      std::vector<float> x(1 << 18);
      auto pair = world.communicator().split({world.info().rank / 2, world.info().rank % 2, 2}, "pair");
      // Ranks 2 and 3 are in a group without the victim.
      for (;;) {
        Communicator& c = world.info().rank < 2 ? world.communicator() : *pair;
        c.all_reduce(Tensor(x.data(), DType::fp32, {1 << 18}), stream);
        if (world.info().rank >= 2) std::this_thread::sleep_for(1ms);
      }
    });
    std::this_thread::sleep_for(300ms);
    EXPECT_EQ(names_in_dev_shm(), 0);
    children[1].signal(SIGKILL);
    const auto killed = Clock::now();
    const std::vector<Ended> ends = wait_all(children);
    EXPECT_LT(Clock::now() - killed, 10s);
    EXPECT_EQ(ends[1].exit, -SIGKILL);
    for (int r : {0, 2, 3}) {
      EXPECT_EQ(ends[size_t(r)].exit, int(Exit::rank_lost)) << ends[size_t(r)].message;
      EXPECT_TRUE(has(ends[size_t(r)].message, "rank 1 (pid")) << ends[size_t(r)].message;
    }
    EXPECT_EQ(names_in_dev_shm(), 0);
  }
}

TEST(Processes, EndWhenRankZeroIsKilled) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(3, over(transport, 60s), [](World& world) {
      Stream stream;
      if (world.info().rank == 0) std::this_thread::sleep_for(60s);
      world.communicator().barrier(stream);
    });
    std::this_thread::sleep_for(300ms);
    children[0].signal(SIGKILL);
    for (int r : {1, 2}) {
      const Ended e = children[size_t(r)].wait();
      EXPECT_EQ(e.exit, int(Exit::rank_lost)) << e.message;
      EXPECT_TRUE(has(e.message, "rank 0")) << e.message;
    }
  }
}

TEST(Processes, LearnWhyARankFailed) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(3, over(transport, 60s), [](World& world) {
      Stream stream;
      if (world.info().rank == 2) {
        world.failed("token 50300 is outside the vocabulary");
        fail(Exit::data, "token 50300 is outside the vocabulary");
      }
      world.communicator().barrier(stream);
    });
    const std::vector<Ended> ends = wait_all(children);
    EXPECT_EQ(ends[2].exit, int(Exit::data));
    for (int r : {0, 1}) {
      EXPECT_EQ(ends[size_t(r)].exit, int(Exit::rank_lost));
      EXPECT_TRUE(has(ends[size_t(r)].message, "failed: token 50300 is outside")) << ends[size_t(r)].message;
    }
  }
}

TEST(Processes, EndWhenOneAborts) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(2, over(transport, 60s), [](World& world) {
      Stream stream;
      if (world.info().rank == 0) {
        std::this_thread::sleep_for(100ms);
        world.communicator().abort("the loss is not finite");
        return;
      }
      const std::string message = error_of([&] { world.communicator().barrier(stream); }, Exit::rank_lost);
      EXPECT_ON_RANK(has(message, "the loss is not finite"), "{}", message);
    });
    for (const Ended& e : wait_all(children)) EXPECT_EQ(e.exit, 0) << e.message;
  }
}

// Rank 1 makes another call than ranks 0 and 2. A rank finds it long before the deadline, and no data moves.
TEST(Processes, ReportADisagreementWithBothRanksAndCalls) {
  struct Case {
    std::string mine, others;
    std::function<void(Communicator&, Tensor, Stream&, bool differs)> make;
  };
  const Case cases[] = {
      {"all_reduce of 5 fp32", "all_reduce of 4 fp32",
       [](Communicator& c, Tensor x, Stream& s, bool differs) {
         c.all_reduce(x.slice({0, differs ? 5 : 4}), s);
       }},
      {"all_reduce of 4 int32", "all_reduce of 4 fp32",
       [](Communicator& c, Tensor x, Stream& s, bool differs) {
         c.all_reduce(Tensor(x.raw(), differs ? DType::int32 : DType::fp32, {4}), s);
       }},
      {"all_reduce by max of 4 fp32", "all_reduce of 4 fp32",
       [](Communicator& c, Tensor x, Stream& s, bool differs) {
         c.all_reduce(x.slice({0, 4}), s, {.by = differs ? Reduction::max : Reduction::sum});
       }},
      {"all_gather of 6 fp32", "all_reduce of 6 fp32",
       [](Communicator& c, Tensor x, Stream& s, bool differs) {
         if (differs)
           c.all_gather(x, x.slice({2, 4}), s);
         else
           c.all_reduce(x, s);
       }},
  };
  for (TransportChoice transport : kBoth)
    for (const Case& one : cases) {
      const auto start = Clock::now();
      auto children = start_ranks(3, over(transport, 60s), [&](World& world) {
        Stream stream;
        float x[6] = {7, 7, 7, 7, 7, 7};
        std::string message = "no error";
        try {
          one.make(world.communicator(), Tensor(x, DType::fp32, {6}), stream, world.info().rank == 1);
        } catch (const Error& e) {
          message = e.what();
        }
        for (const float value : x) EXPECT_ON_RANK(value == 7, "data moved");
        fail(Exit::internal, "{}", message);
      });
      bool reported = false;
      for (const Ended& e : wait_all(children))
        reported |= has(e.message, "ranks make different calls: ") && has(e.message, one.mine) &&
                    has(e.message, one.others) && has(e.message, "rank 1 is in " + one.mine);
      EXPECT_TRUE(reported) << one.mine;
      EXPECT_LT(Clock::now() - start, 30s);
    }
}

TEST(Processes, OnGlooReachTheDeadlineAfterADisagreementIfItIsShort) {
  auto children = start_ranks(2, over(TransportChoice::gloo, 300ms), [](World& world) {
    Stream stream;
    float x[8] = {};
    world.communicator().all_reduce(Tensor(x, DType::fp32, {world.info().rank == 1 ? 5 : 4}), stream);
  });
  for (const Ended& e : wait_all(children)) EXPECT_EQ(e.exit, int(Exit::rank_lost)) << e.message;
}

TEST(Processes, WaitForASlowRank) {
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(2, over(transport), [](World& world) {
      Stream stream;
      if (world.info().rank == 1) std::this_thread::sleep_for(200ms);
      world.communicator().barrier(stream);
    });
    for (const Ended& e : wait_all(children)) EXPECT_EQ(e.exit, 0) << e.message;
  }
}

TEST(Processes, LeaveTheirLettersToTheReceiver) {
  // The sender destroys its group at once; the receiver comes later.
  for (TransportChoice transport : kBoth) {
    auto children = start_ranks(2, over(transport), [](World& world) {
      Stream stream;
      std::vector<int32_t> x(100'000);
      auto pipe = world.communicator().duplicate("pipe");
      if (world.info().rank == 0) {
        std::iota(x.begin(), x.end(), 7);
        pipe->send(Tensor(x.data(), DType::int32, {100'000}), 1, stream);
        std::fill(x.begin(), x.end(), 0);
      } else {
        std::this_thread::sleep_for(100ms);
        pipe->recv(Tensor(x.data(), DType::int32, {100'000}), 0, stream);
        EXPECT_ON_RANK(x[0] == 7 && x[99'999] == 100'006, "{} {}", x[0], x[99'999]);
      }
    });
    for (const Ended& e : wait_all(children)) EXPECT_EQ(e.exit, 0) << e.message;
  }
}

}  // namespace
}  // namespace cleave::comm
