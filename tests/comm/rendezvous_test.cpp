// Ranks that may join a job, and rejected callers.
#include "comm/rendezvous/rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <thread>

#include "comm/post.h"
#include "comm/rendezvous/meeting_point.h"
#include "comm/rendezvous/socket.h"
#include "tests/comm/collectives.h"
#include "tests/comm/processes.h"
#include "tests/comm/served.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using test::Child;
using test::Ended;
using test::has;
using test::hello_of;
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

TEST(Rendezvous, FindsTheHostsOfRanks) {
  const int port = test::free_port();
  std::vector<Child> children;
  for (int r = 0; r < 3; ++r)
    children.emplace_back([=] {
      RankInfo info = rank_of(r, 3, port);
      info.local_rank = 7;  // wrong; the rendezvous corrects it
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
  info.master_port = 1;  // not available to this test
  const auto world = connect(info);
  EXPECT_EQ(world->communicator().size(), 1);
  EXPECT_EQ(world->transport(), "none, a single rank");
  EXPECT_THROW(connect(rank_of(2, 2, 1)), Error);
  EXPECT_THROW(parse_transport("mpi"), Error);
  EXPECT_EQ(parse_transport("auto"), TransportChoice::automatic);
}

TEST(Rendezvous, NamesMissingRanks) {
  const int port = test::free_port();
  ConnectOptions options = quick(600ms);
  options.report_every = 100ms;
  std::vector<std::string> waits;
  options.on_wait = [&](const std::string& text) { waits.push_back(text); };
  Child one = join(rank_of(1, 4, port), options);
  const std::string message = test::error_of([&] { connect(rank_of(0, 4, port), options); }, Exit::rank_lost);
  EXPECT_TRUE(has(message, "waiting for ranks 2, 3 (2 of 4 have arrived)")) << message;
  ASSERT_FALSE(waits.empty());
  EXPECT_TRUE(has(waits.back(), "waiting for ranks 2, 3 (2 of 4 have arrived)")) << waits.back();
  EXPECT_EQ(one.wait().exit, int(Exit::rank_lost));
}

TEST(Rendezvous, NamesAnAddressThatDoesNotAnswer) {
  const int port = test::free_port();
  ConnectOptions options = quick(200ms);
  std::string reported;
  options.report_every = 20ms;
  options.on_wait = [&](const std::string& text) { reported = text; };
  const std::string message = test::error_of([&] { connect(rank_of(1, 2, port), options); }, Exit::rank_lost);
  EXPECT_TRUE(has(message, std::to_string(port)) && has(message, "Connection refused")) << message;
  EXPECT_TRUE(has(reported, "cannot reach rank 0 at") && has(reported, "Connection refused")) << reported;
}

TEST(Rendezvous, NamesTheOwnerOfAPort) {
  const Socket dummy = listen_on(0);
  const std::string message =
      test::error_of([&] { connect(rank_of(0, 2, port_of(dummy)), quick()); }, Exit::usage);
  EXPECT_TRUE(has(message, fmt::format("port {}: ", port_of(dummy)))) << message;
  EXPECT_TRUE(
      has(message, fmt::format("(pid {}) listens there; end it, or choose another MASTER_PORT", getpid())))
      << message;
}

TEST(Rendezvous, WaitsForAPortUntilItIsFree) {
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

TEST(Rendezvous, DoesNotUseThePortOfAnAgent) {
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

TEST(Rendezvous, RejectsAnEarlierAttempt) {
  const int port = test::free_port();
  RankInfo stale = rank_of(1, 2, port), now = rank_of(1, 2, port), zero = rank_of(0, 2, port);
  now.attempt = zero.attempt = 1;
  Child old = join(stale), server = join(zero);
  const Ended e = old.wait();
  EXPECT_EQ(e.exit, int(Exit::usage));
  EXPECT_TRUE(has(e.message, " belongs to attempt 0, but attempt 1 is running")) << e.message;
  Child fresh = join(now);
  EXPECT_EQ(fresh.wait().exit, 0);
  EXPECT_EQ(server.wait().exit, 0);
}

TEST(MeetingPoint, IsOneHostIfOthersCannotCall) {
  const auto is = [](const char* master, const char* host, const char* address, bool on_one_host) {
    const MeetingPoint p = meeting_point(master);
    EXPECT_TRUE(p.host == host && p.address == address && p.on_one_host == on_one_host) << master;
  };
  is("127.0.0.1", "127.0.0.1", "127.0.0.1", true);
  is("127.1.2.3", "127.1.2.3", "127.1.2.3", true);
  is("localhost", "127.0.0.1", "127.0.0.1", true);
  is("::1", "::1", "::1", true);
  is("192.0.2.7", "192.0.2.7", "192.0.2.7", false);
  is("fd00::7", "fd00::7", "fd00::7", false);
  is("node-a", "node-a", "", false);
}

TEST(Rendezvous, ListensOnlyOnTheLoopbackOfALoopbackMaster) {
  const int port = test::free_port();
  const auto reached = [&](const char* address) {
    std::string why;
    return bool(connect_to(address, port, Clock::now() + 1s, why));
  };
  for (const bool on_all : {false, true}) {
    RankInfo zero = rank_of(0, 2, port);
    zero.master_addr = on_all ? "node-a" : "localhost";
    Child rank([&] { return connect(zero, quick(2s)) ? 0 : 1; });
    const auto until = Clock::now() + 5s;
    while (!reached("127.0.0.1") && Clock::now() < until) std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(reached("127.0.0.1"));
    EXPECT_EQ(reached("127.0.0.2"), on_all);
    rank.wait();
  }
}

TEST(Rendezvous, OnOneHostAgreesOnASecretIfNoneWasGiven) {
  const int port = test::free_port();
  RankInfo zero = rank_of(0, 2, port), one = rank_of(1, 2, port);
  zero.token = one.token = "";
  Child server = join(zero);
  std::string why;
  const auto until = Clock::now() + 5s;
  while (SecretDoor::ask(port, until, why).empty() && Clock::now() < until) std::this_thread::sleep_for(5ms);
  for (const std::string& guess : {std::string(), std::string("guess")}) {
    wire::Hello stranger = hello_of(1);
    stranger.port = port;
    Socket s;
    while (!s && Clock::now() < until) s = connect_to("127.0.0.1", port, until, why);
    const auto joined = KeyValueClient::join(std::move(s), stranger, guess, std::make_shared<Alarm>());
    EXPECT_TRUE(!joined.client && joined.refused && has(joined.why, "token is wrong")) << joined.why;
  }
  Child client = join(one);
  for (Child* c : {&server, &client}) {
    const Ended e = c->wait();
    EXPECT_EQ(e.exit, 0) << e.message;
  }
  EXPECT_EQ(SecretDoor::ask(port, Clock::now(), why), "");
}

TEST(MeetingPoint, TakesAnInheritedSocketThatListensOnThePort) {
  const Socket bound = reserve_port(0, "127.0.0.1"), file(::open("/dev/null", O_RDWR | O_CLOEXEC)),
               unix_domain(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Socket listens = listen_on(0, "127.0.0.1");
  const int port = port_of(listens), fd = listens.release();
  for (const int other : {-1, bound.fd(), file.fd(), unix_domain.fd()})
    EXPECT_FALSE(inherited_listener(other, port_of(bound))) << other;
  EXPECT_FALSE(inherited_listener(fd, port + 1));
  ASSERT_EQ(fcntl(fd, F_SETFD, 0), 0);
  const Socket taken = inherited_listener(fd, port);
  EXPECT_EQ(taken.fd(), fd);
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
}

// Works even if another process took MASTER_PORT. If a program closed the socket, rank 0 listens at
// MASTER_PORT.
TEST(Rendezvous, UsesTheSocketOfTheLauncher) {
  for (const bool inherits : {true, false}) {
    Socket taken = listen_on(0, "127.0.0.1"), launcher = listen_on(0, "127.0.0.1");
    const int port = port_of(taken);
    if (!inherits) taken.close();
    std::vector<Child> children;
    for (int r = 0; r < 2; ++r) {
      RankInfo info = rank_of(r, 2, port);
      info.meeting_port = port_of(launcher);
      if (r == 0 && inherits) info.meeting_fd = launcher.fd();
      children.push_back(join(info, quick(20s)));
    }
    for (Child& c : children) {
      const Ended e = c.wait();
      EXPECT_EQ(e.exit, 0) << e.message;
    }
  }
}

TEST(Rendezvous, TakesNoSecretFromAnotherUserOnThisHost) {
  if (geteuid() != 0) GTEST_SKIP() << "a process of another user: needs root";
  const int port = test::free_port();
  Child other([=]() -> int {  // listens first under the name of root's door
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text = fmt::format("cleave-0-{}", port);
    text.copy(name.sun_path + 1, text.size());
    const Socket squatter(::socket(AF_UNIX, SOCK_STREAM, 0)), tcp = listen_on(port, "127.0.0.1");
    CHECK(setuid(65534) == 0, "setuid");
    CHECK(bind(squatter.fd(), reinterpret_cast<sockaddr*>(&name),
               socklen_t(offsetof(sockaddr_un, sun_path) + 1 + text.size())) == 0 &&
              listen(squatter.fd(), 8) == 0,
          "squatter");
    for (;;) {
      const Socket caller(accept(squatter.fd(), nullptr, nullptr));
      send(caller.fd(), std::string(32, 'a').data(), 32, MSG_NOSIGNAL);
    }
  });
  RankInfo one = rank_of(1, 2, port);
  one.token = "";
  const std::string message = test::error_of([&] { connect(one, quick(1500ms)); }, Exit::rank_lost);
  EXPECT_TRUE(has(message, " belongs to another user; set CLEAVE_TOKEN")) << message;
  RankInfo zero = rank_of(0, 2, port);
  zero.token = "";
  EXPECT_TRUE(
      has(test::error_of([&] { connect(zero, quick(1500ms)); }, Exit::usage), "cannot listen on port"));
  // The door of root's own rank 0 gives nothing to other users.
  const int mine = test::free_port();
  SecretDoor door = SecretDoor::open(mine);
  ASSERT_TRUE(door);
  Child thief([=] {
    CHECK(setuid(65534) == 0, "setuid");
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text = fmt::format("cleave-0-{}", mine);
    text.copy(name.sun_path + 1, text.size());
    const Socket s(::socket(AF_UNIX, SOCK_STREAM, 0));
    CHECK(::connect(s.fd(), reinterpret_cast<sockaddr*>(&name),
                    socklen_t(offsetof(sockaddr_un, sun_path) + 1 + text.size())) == 0,
          "connect");
    char byte = 0;
    return recv(s.fd(), &byte, 1, 0) > 0 ? 1 : 0;
  });
  ASSERT_TRUE(wait_for(door.fd(), POLLIN, Clock::now() + 10s));
  door.hand_out();
  EXPECT_EQ(thief.wait().exit, 0);
}

TEST(Rendezvous, WarnsIfNoSecretKeepsStrangersOut) {
  RankInfo zero = rank_of(0, 2, test::free_port());
  zero.token = "", zero.master_addr = "node-a";
  std::vector<std::string> said;
  ConnectOptions options = quick(300ms);
  options.on_wait = [&](const std::string& text) { said.push_back(text); };
  test::error_of([&] { connect(zero, options); }, Exit::rank_lost);
  ASSERT_FALSE(said.empty());
  EXPECT_TRUE(has(said[0], "warning: ") && has(said[0], "CLEAVE_TOKEN")) << said[0];
}

TEST(Rendezvous, NamesTheMissingStepIfNoRankIsMissing) {
  const int port = test::free_port();
  ConnectOptions options = quick(1s);
  Child zero = join(rank_of(0, 2, port), options);
  std::string why;
  std::unique_ptr<KeyValueClient> mute;
  for (const auto until = Clock::now() + 5s; !mute && Clock::now() < until;)
    if (Socket s = connect_to("127.0.0.1", port, until, why)) {
      wire::Hello hello = hello_of(1);
      hello.port = port;
      mute = KeyValueClient::join(std::move(s), hello, "secret", std::make_shared<Alarm>()).client;
    }
  ASSERT_TRUE(mute);
  const Ended e = zero.wait();
  EXPECT_TRUE(has(e.message, "all 2 ranks have arrived, but one has not confirmed 'process/1'")) << e.message;
}

TEST(DeadlineReport, NamesNoMissingRankIfAllArePresent) {
  const std::string group = "world";
  const std::vector<int> ranks{0, 1};
  const Waiting w{group, ranks, 1, 7, "loss", {}};
  const std::string all = deadline_report(w, {true, true}, 2s), one = deadline_report(w, {false, true}, 2s);
  EXPECT_FALSE(has(all, "missing")) << all;
  EXPECT_TRUE(has(all, "rank 1 waited 2.0 s") && has(all, "other operands")) << all;
  EXPECT_TRUE(has(one, "Present: rank 1; missing: rank 0.")) << one;
}

}  // namespace
}  // namespace cleave::comm
