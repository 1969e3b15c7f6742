// Callers of a rank's data listener: accepted ranks and rejected strangers.
#include "comm/rendezvous/data_listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <random>
#include <thread>
#include <utility>

#include "comm/rendezvous/wire.h"
#include "tests/comm/collectives.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using test::has;

Clock::time_point soon() { return Clock::now() + 10s; }
DataLink link_to(int peer, const std::string& group = "g") {
  return {group, peer, fmt::format("rank {}", peer)};
}

int port_in(const std::string& where) {
  wire::Reader r(std::string_view(where).substr(5));
  r.text();
  return r.number<int32_t>();
}

// The address with another secret.
std::string with_a_guess(const std::string& where) {
  std::string guess = where;
  guess.back() = guess.back() == '0' ? '1' : '0';
  return guess;
}

// Checks that a byte from one end arrives at the other.
void expect_joined(Socket& a, Socket& b) {
  char got = 0;
  EXPECT_TRUE(a.send_all("x", soon()));
  EXPECT_TRUE(b.recv_all(&got, 1, soon()));
  EXPECT_EQ(got, 'x');
}

TEST(DataListener, AcceptsTheRankWithTheSecretAndNoStrangerBeforeIt) {
  DataListener listener("127.0.0.1");
  const Alarm alarm;
  std::mt19937 random(1);
  std::vector<Socket> strangers;
  std::string why;
  for (int i = 0; i < 300; ++i) {
    Socket s = connect_to("127.0.0.1", port_in(listener.where()), soon(), why);
    ASSERT_TRUE(s) << why;
    std::string garbage(random() % 3000, 0);
    for (char& c : garbage) c = char(random());
    if (i % 3) s.send_all(garbage, soon());
    strangers.push_back(std::move(s));
  }
  // A caller that guesses is disconnected and retries until its deadline.
  std::string refused;
  std::thread guesser([&] {
    refused = error_of(
        [&] { connect_data(link_to(0), 1, with_a_guess(listener.where()), alarm, Clock::now() + 1s); },
        Exit::rank_lost);
  });
  Socket called;
  std::thread caller([&] { called = connect_data(link_to(0), 1, listener.where(), alarm, soon()); });
  Socket taken = listener.accept(link_to(1), alarm, soon());
  caller.join();
  expect_joined(called, taken);
  const std::string nobody =
      error_of([&] { listener.accept(link_to(2), alarm, Clock::now() + 1500ms); }, Exit::rank_lost);
  EXPECT_TRUE(has(nobody, "rank 2 did not connect before the deadline")) << nobody;
  guesser.join();
  EXPECT_TRUE(has(refused, "rank 0 was not reachable for data at 127.0.0.1:") &&
              (has(refused, "does not have the rank's secret") || has(refused, "closed the connection")))
      << refused;
}

TEST(DataListener, KeepsAConnectionForItsGroup) {
  DataListener listener("127.0.0.1");
  const Alarm alarm;
  Socket later, now;
  std::thread caller([&] {
    later = connect_data(link_to(0, "later"), 1, listener.where(), alarm, soon());
    now = connect_data(link_to(0, "now"), 1, listener.where(), alarm, soon());
  });
  Socket first = listener.accept(link_to(1, "now"), alarm, soon());
  Socket second = listener.accept(link_to(1, "later"), alarm, soon());
  caller.join();
  expect_joined(now, first);
  expect_joined(later, second);
}

TEST(DataListener, IsCalledRepeatedlyUntilItListens) {
  const Alarm alarm;
  std::string where;
  { where = DataListener("127.0.0.1").where(); }  // no process listens there any more
  const std::string message =
      error_of([&] { connect_data(link_to(0), 1, where, alarm, Clock::now() + 200ms); }, Exit::rank_lost);
  EXPECT_TRUE(has(message, "Connection refused")) << message;
  Socket called;
  std::thread caller([&] { called = connect_data(link_to(0), 1, where, alarm, soon()); });
  std::this_thread::sleep_for(50ms);
  const Socket again = listen_on(port_in(where), "127.0.0.1");
  ASSERT_TRUE(again);
  ASSERT_TRUE(wait_for(again.fd(), POLLIN, soon()));
  wire::Reader r(std::string_view(where).substr(5));
  r.text();
  r.number<int32_t>();
  Greeting greeting(Purpose::data, r.text());
  Socket taken(accept(again.fd(), nullptr, nullptr));
  std::string in, out;
  while (greeting.hear(in, out) == Greeting::State::hearing) {
    char byte = 0;
    ASSERT_TRUE(taken.send_all(std::exchange(out, {}), soon()) && taken.recv_all(&byte, 1, soon()));
    in += byte;
  }
  EXPECT_TRUE(taken.send_all(greeting.answer("welcome"), soon()));
  caller.join();
  EXPECT_TRUE(called);
}

TEST(DataListener, EndsWaitsWhenTheJobIsLost) {
  DataListener listener("127.0.0.1");
  Alarm alarm;
  std::thread ring([&] {
    std::this_thread::sleep_for(50ms);
    alarm.ring("rank 3 went away");
  });
  EXPECT_EQ(error_of([&] { listener.accept(link_to(1), alarm, Clock::now() + 60s); }, Exit::rank_lost),
            "rank 3 went away");
  EXPECT_EQ(error_of([&] { connect_data(link_to(0), 1, listener.where(), alarm, Clock::now() + 60s); },
                     Exit::rank_lost),
            "rank 3 went away");
  ring.join();
}

}  // namespace
}  // namespace cleave::comm
