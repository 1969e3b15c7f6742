// Who may join a job, and what happens to everybody else.
#include "comm/rendezvous.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <random>
#include <thread>

#include "comm/key_value_client.h"
#include "comm/key_value_server.h"
#include "comm/socket.h"
#include "tests/comm/collectives.h"
#include "tests/comm/processes.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;
using test::Child;
using test::Ended;
using test::has;
using test::rank_of;

ConnectOptions quick(std::chrono::milliseconds timeout = 10s) {
  ConnectOptions options;
  options.rendezvous_timeout = timeout;
  options.port_timeout = std::min<std::chrono::milliseconds>(timeout, 500ms);
  options.comm.timeout = 10s;
  return options;
}

Child join(const RankInfo& info, const ConnectOptions& options = quick()) {
  return Child([=] {
    const auto world = connect(info, options);
    Stream stream;
    world->communicator().barrier(stream);
    return 0;
  });
}

wire::Hello hello_of(int rank, int world = 2) {
  return {.job_id = "test",
          .attempt = 0,
          .token = "secret",
          .world = world,
          .rank = rank,
          .host = "host-a",
          .pid = 100 + rank};
}

// A server on a free port and a way to talk to it.
struct Served {
  explicit Served(int world = 2)
      : socket(listen_on(0)), port(port_of(socket)), server(std::move(socket), hello_of(0, world)) {}
  std::unique_ptr<KeyValueClient> join(const wire::Hello& hello) {
    std::string why;
    Socket s = connect_to("127.0.0.1", port, Clock::now() + 5s, why);
    EXPECT_TRUE(s) << why;
    return KeyValueClient::join(std::move(s), hello, alarm, why);
  }
  std::string refusal(const wire::Hello& hello) {
    return test::error_of([&] { join(hello); }, Exit::usage);
  }
  Socket socket;
  int port;
  std::shared_ptr<Alarm> alarm = std::make_shared<Alarm>();
  KeyValueServer server;
};

TEST(Rendezvous, FindsWhereRanksRun) {
  const int port = test::free_port();
  std::vector<Child> children;
  for (int r = 0; r < 3; ++r)
    children.emplace_back([=] {
      RankInfo info = rank_of(r, 3, port);
      info.local_rank = 7;  // wrong, and corrected by what the ranks see
      const auto world = connect(info, quick());
      EXPECT_ON_RANK(world->info().local_rank == r && world->info().local_size == 3, "{}",
                     world->info().local_rank);
      EXPECT_ON_RANK(world->info().nodes == 1 && world->info().node_rank == 0, "{}", world->info().nodes);
      EXPECT_ON_RANK(has(world->transport(), "shared memory, 3 ranks on "), "{}", world->transport());
      return 0;
    });
  for (Child& c : children) {
    const Ended e = c.wait();
    EXPECT_EQ(e.exit, 0) << e.message;
  }
}

TEST(Rendezvous, NeedsNoPortForOneRank) {
  RankInfo info;
  info.master_port = 1;  // not ours to take
  const auto world = connect(info);
  EXPECT_EQ(world->communicator().size(), 1);
  EXPECT_EQ(world->transport(), "none, a single rank");
  EXPECT_THROW(connect(rank_of(2, 2, 1)), Error);
  EXPECT_THROW(parse_transport("mpi"), Error);
  EXPECT_EQ(parse_transport("auto"), TransportChoice::automatic);
}

TEST(Rendezvous, NamesTheRanksThatDidNotCome) {
  const int port = test::free_port();
  ConnectOptions options = quick(600ms);
  options.report_every = 100ms;
  std::vector<std::string> waits;
  options.on_wait = [&](const std::string& text) { waits.push_back(text); };
  Child one = join(rank_of(1, 4, port), options);
  const std::string message = test::error_of([&] { connect(rank_of(0, 4, port), options); }, Exit::rank_lost);
  EXPECT_TRUE(has(message, "waiting for ranks 2, 3 (2 of 4 are here)")) << message;
  ASSERT_FALSE(waits.empty());
  EXPECT_TRUE(has(waits.back(), "waiting for ranks 2, 3 (2 of 4 are here)")) << waits.back();
  EXPECT_EQ(one.wait().exit, int(Exit::rank_lost));
}

TEST(Rendezvous, NamesTheAddressThatDoesNotAnswer) {
  const int port = test::free_port();
  ConnectOptions options = quick(200ms);
  std::string reported;
  options.report_every = 20ms;
  options.on_wait = [&](const std::string& text) { reported = text; };
  const std::string message = test::error_of([&] { connect(rank_of(1, 2, port), options); }, Exit::rank_lost);
  EXPECT_TRUE(has(message, std::to_string(port)) && has(message, "Connection refused")) << message;
  EXPECT_TRUE(has(reported, "does not reach rank 0") && has(reported, "Connection refused")) << reported;
}

TEST(Rendezvous, NamesWhoHoldsThePort) {
  const Socket dummy = listen_on(0);
  const std::string message =
      test::error_of([&] { connect(rank_of(0, 2, port_of(dummy)), quick()); }, Exit::usage);
  EXPECT_TRUE(has(message, fmt::format("port {}: ", port_of(dummy)))) << message;
  EXPECT_TRUE(has(message, fmt::format("(pid {}) listens there", getpid()))) << message;
}

TEST(Rendezvous, WaitsForAPortThatIsGivenBack) {
  const int port = test::free_port();
  Child holder([=] {
    const Socket held = listen_on(port);
    std::this_thread::sleep_for(300ms);
    return held ? 0 : 1;
  });
  std::this_thread::sleep_for(50ms);
  ConnectOptions options = quick();
  options.port_timeout = 10s;
  Child one = join(rank_of(1, 2, port), options), zero = join(rank_of(0, 2, port), options);
  EXPECT_EQ(holder.wait().exit, 0);
  for (Child* c : {&zero, &one}) {
    const Ended e = c->wait();
    EXPECT_EQ(e.exit, 0) << e.message;
  }
}

TEST(Rendezvous, LeavesThePortOfAnAgentAlone) {
  const Socket agent = listen_on(0);
  std::vector<Child> children;
  for (int r = 0; r < 2; ++r) {
    RankInfo info = rank_of(r, 2, port_of(agent));
    info.port_is_taken = true;
    info.attempt = 1;
    children.push_back(join(info));
  }
  for (Child& c : children) {
    const Ended e = c.wait();
    EXPECT_EQ(e.exit, 0) << e.message;
  }
}

TEST(Hello, IsRefusedWithTheReason) {
  Served served(3);
  auto member = served.join(hello_of(1, 3));
  ASSERT_TRUE(member);
  wire::Hello other = hello_of(2, 3);
  other.token = "guess";
  EXPECT_TRUE(has(served.refusal(other), "token is wrong"));
  other = hello_of(2, 3);
  other.job_id = "yesterday";
  EXPECT_TRUE(has(served.refusal(other), "this is job 'test', not 'yesterday'"));
  const std::string twice = served.refusal(hello_of(1, 3));
  EXPECT_TRUE(has(twice, "rank 1 is there twice: pid 101 on host-a, and rank 1 (pid 101 on host-a)"))
      << twice;
  const std::string world = served.refusal(hello_of(2, 8));
  EXPECT_TRUE(has(world, "as one of 8 ranks") && has(world, "as one of 3")) << world;
  EXPECT_TRUE(has(served.refusal(hello_of(5, 3)), "rank 5 of 3 does not exist"));
  other = hello_of(2, 3);
  other.attempt = -1;
  EXPECT_TRUE(has(served.refusal(other), "left over from attempt -1; attempt 0 is running"));
  other = hello_of(2, 3);
  other.version = "0.0.9";
  const std::string version = served.refusal(other);
  EXPECT_TRUE(has(version, "rank 2 (pid 102 on host-a) is of cleave 0.0.9, rank 0 (pid 100 on host-a) of "))
      << version;
  EXPECT_EQ(served.server.missing(), (std::vector<int>{0, 2}));
  EXPECT_EQ(served.server.refusals().size(), 7u);
  EXPECT_EQ(served.alarm->reason(), "");
  member->leave();
}

TEST(Hello, OfALaterAttemptIsAskedToComeAgain) {
  Served served;
  wire::Hello next = hello_of(1);
  next.attempt = 1;
  EXPECT_FALSE(served.join(next));
  next.job_id = "";  // unknown, agrees with any
  next.attempt = 0;
  auto store = served.join(next);
  ASSERT_TRUE(store);
  store->leave();
}

TEST(Rendezvous, RefusesAnAttemptThatIsOver) {
  const int port = test::free_port();
  RankInfo stale = rank_of(1, 2, port), now = rank_of(1, 2, port), zero = rank_of(0, 2, port);
  now.attempt = zero.attempt = 1;
  Child old = join(stale), server = join(zero);
  const Ended e = old.wait();
  EXPECT_EQ(e.exit, int(Exit::usage));
  EXPECT_TRUE(has(e.message, "left over from attempt 0; attempt 1 is running")) << e.message;
  Child fresh = join(now);
  EXPECT_EQ(fresh.wait().exit, 0);
  EXPECT_EQ(server.wait().exit, 0);
}

TEST(Strangers, DisturbNobody) {
  Served served;
  auto zero = served.join(hello_of(0));
  std::mt19937 random(1);
  std::string why;
  std::vector<Socket> silent;
  for (int i = 0; i < 200; ++i) {
    Socket s = connect_to("127.0.0.1", served.port, Clock::now() + 5s, why);
    std::string garbage(random() % 3000, 0);
    for (char& c : garbage) c = char(random());
    if (i % 4 == 1) garbage = std::string(wire::kMagic) + garbage;
    if (i % 4 == 2) garbage = "GET / HTTP/1.1\r\n\r\n";
    if (i % 4 == 3) garbage = std::string(wire::kMagic) + wire::encode(hello_of(1)).substr(0, random() % 40);
    s.send_all(garbage, Clock::now() + 1s);
    if (i % 2) silent.push_back(std::move(s));
  }
  auto one = served.join(hello_of(1));
  ASSERT_TRUE(one);
  one->set("a", "hello");
  EXPECT_EQ(zero->get("a", Clock::now() + 5s), "hello");
  EXPECT_EQ(served.alarm->reason(), "");
  zero->leave();
  one->leave();
}

TEST(KeyValueClient, SetsGetsAddsAndWaits) {
  Served served;
  auto zero = served.join(hello_of(0)), one = served.join(hello_of(1));
  EXPECT_EQ(zero->get("missing", Clock::now() + 50ms), std::nullopt);
  std::thread late([&] {
    std::this_thread::sleep_for(50ms);
    one->set("late", std::string("with\0zero", 9));
  });
  EXPECT_EQ(zero->get("late", Clock::now() + 5s), std::string("with\0zero", 9));
  late.join();
  EXPECT_EQ(zero->add("count", 3, Clock::now() + 5s), 3);
  EXPECT_EQ(one->add("count", -1, Clock::now() + 5s), 2);
  const std::string large(400'000, 'x');
  one->set("large", large);
  EXPECT_EQ(zero->get("large", Clock::now() + 5s), large);
  zero->leave();
  one->leave();
}

TEST(KeyValueClient, RingsTheAlarmWhenAMemberHangsUp) {
  Served served;
  auto zero = served.join(hello_of(0));
  auto alarm_of_zero = served.alarm;
  served.alarm = std::make_shared<Alarm>();
  auto one = served.join(hello_of(1));
  one.reset();
  const std::string message =
      test::error_of([&] { zero->get("never", Clock::now() + 10s); }, Exit::rank_lost);
  EXPECT_EQ(message, "rank 1 (pid 101 on host-a) went away");
  EXPECT_EQ(alarm_of_zero->reason(), message);
}

TEST(Wire, ReadsNothingBeyondAFrame) {
  const std::string whole = wire::encode(hello_of(1));
  for (size_t n = 0; n < whole.size() - 4; ++n)
    EXPECT_FALSE(wire::decode_hello(std::string_view(whole).substr(4, n))) << n;
  EXPECT_TRUE(wire::decode_hello(std::string_view(whole).substr(4)));
  bool bad = false;
  std::string bytes = whole.substr(0, 10);
  EXPECT_FALSE(wire::take_frame(bytes, 4096, bad));
  EXPECT_FALSE(bad);
  bytes = "\xff\xff\xff\xffxx";
  EXPECT_FALSE(wire::take_frame(bytes, 4096, bad));
  EXPECT_TRUE(bad);
}

}  // namespace
}  // namespace cleave
