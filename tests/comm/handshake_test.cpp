// Attacks of strangers on the rendezvous: they listen first, guess, replay, forward calls, or call so often
// that ranks could not connect.
#include "comm/rendezvous/handshake.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rendezvous/reception.h"
#include "tests/comm/collectives.h"
#include "tests/comm/processes.h"
#include "tests/comm/served.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using test::Child;
using test::has;
using test::hello_of;
using test::kSecret;
using test::Served;

Clock::time_point shortly() { return Clock::now() + 10s; }

struct Pair {
  Pair() {
    int ends[2] = {};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
    caller = Socket(ends[0]), called = Socket(ends[1]);
  }
  Socket caller, called;
};

// The next `bytes` bytes of a connection; empty if they do not arrive.
std::string heard_by(Socket& socket, size_t bytes) {
  std::string text(bytes, 0);
  return socket.recv_all(text.data(), bytes, shortly()) ? text : std::string();
}

TEST(Handshake, GivesNoSecretToAStrangerThatListensFirst) {
  Pair pair;
  std::string heard;
  std::thread stranger([&] {  // follows the protocol without the secret
    heard = heard_by(pair.called, kMagic.size() + kNonceBytes);
    pair.called.send_all(std::string(kMagic) + std::string(kNonceBytes, 'n'), shortly());
    uint32_t size = 0;
    pair.called.recv_all(&size, sizeof(size), shortly());
    const std::string frame = heard_by(pair.called, size);
    heard += frame;
    // Returns the caller's own proof, which would be valid if both directions had one label.
    pair.called.send_all(std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + frame, shortly());
  });
  const Answer answer =
      introduce(pair.caller, {Purpose::store, "the word of this job", "hello", shortly(), nullptr});
  stranger.join();
  EXPECT_EQ(answer.from, Answer::From::stranger);
  EXPECT_TRUE(has(heard, "hello"));
  EXPECT_FALSE(has(heard, "the word of this job"));
}

TEST(Handshake, ProvesBothEndsAndTheirTexts) {
  Greeting greeting(Purpose::store, kSecret);
  Pair pair;
  Answer answer;
  std::thread caller([&] {
    answer = introduce(pair.caller, {Purpose::store, kSecret, "hello", shortly(), nullptr});
  });
  std::string in, out;
  Greeting::State state;
  while ((state = greeting.hear(in, out)) == Greeting::State::hearing) {
    ASSERT_TRUE(pair.called.send_all(std::exchange(out, {}), shortly()));
    in += heard_by(pair.called, 1);
  }
  EXPECT_EQ(state, Greeting::State::proven);
  EXPECT_EQ(greeting.hello(), "hello");
  pair.called.send_all(greeting.answer("welcome"), shortly());
  caller.join();
  EXPECT_EQ(answer.from, Answer::From::proven);
  EXPECT_EQ(answer.text, "welcome");
}

TEST(Handshake, RejectsATextThatWasChangedInTransit) {
  for (const bool change_hello : {true, false}) {
    Greeting greeting(Purpose::store, kSecret);
    Pair pair;
    Answer answer;
    std::thread caller([&] {
      answer = introduce(pair.caller, {Purpose::store, kSecret, "rank 1", shortly(), nullptr});
    });
    std::string in = heard_by(pair.called, kMagic.size() + kNonceBytes), out;
    greeting.hear(in, out);
    pair.called.send_all(std::exchange(out, {}), shortly());
    in = heard_by(pair.called, sizeof(uint32_t) + kProofBytes + 6);
    if (change_hello) in.back() = '2';
    const Greeting::State state = greeting.hear(in, out);
    EXPECT_EQ(state, change_hello ? Greeting::State::wrong_secret : Greeting::State::proven);
    std::string last = change_hello ? out : greeting.answer("welcome");
    if (!change_hello) last.back() = 'E';
    pair.called.send_all(last, shortly());
    caller.join();
    EXPECT_EQ(answer.from, Answer::From::stranger);
  }
}

TEST(Handshake, OfOneKindIsNotValidForAnother) {
  Served served;
  std::string why;
  Socket socket = connect_to("127.0.0.1", served.port, shortly(), why);
  const std::string hello = wire::encode(served.at_port(hello_of(1)));
  EXPECT_EQ(introduce(socket, {Purpose::data, kSecret, hello, shortly(), nullptr}).from,
            Answer::From::stranger);
  EXPECT_TRUE(served.join(hello_of(1)));
}

TEST(Handshake, DoesNotHoldIfReplayed) {
  Served served;
  // A stranger between a rank and rank 0 that records the rank's messages.
  Socket between = listen_on(0, "127.0.0.1");
  std::string why, recorded;
  std::thread recorder([&] {
    ASSERT_TRUE(wait_for(between.fd(), POLLIN, shortly()));
    Socket rank(accept4(between.fd(), nullptr, nullptr, SOCK_NONBLOCK));
    Socket zero = connect_to("127.0.0.1", served.port, shortly(), why);
    for (const size_t bytes : {kMagic.size() + kNonceBytes, size_t{0}}) {
      std::string said = bytes ? heard_by(rank, bytes) : std::string();
      if (!bytes) {
        uint32_t size = 0;
        rank.recv_all(&size, sizeof(size), shortly());
        said = std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + heard_by(rank, size);
      }
      recorded += said;
      zero.send_all(said, shortly());
      if (bytes) rank.send_all(heard_by(zero, bytes), shortly());
    }
    heard_by(zero, sizeof(uint32_t));  // the refusal, so that rank 0 has judged the call
  });
  // The rank called the stranger's port, so the forwarded call is rejected.
  wire::Hello hello = hello_of(1);
  hello.port = port_of(between);
  Socket caller = connect_to("127.0.0.1", hello.port, shortly(), why);
  std::thread rank([&] {
    introduce(caller, {Purpose::store, kSecret, wire::encode(hello), Clock::now() + 2s, nullptr});
  });
  recorder.join();
  rank.join();
  const auto refused = served.server.refusals();
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_TRUE(has(refused[0], "another process forwarded the call")) << refused[0];
  // An exact replay of the record is also rejected.
  Socket again = connect_to("127.0.0.1", served.port, shortly(), why);
  again.send_all(recorded, shortly());
  heard_by(again, kMagic.size() + kNonceBytes);
  const std::string last = heard_by(again, sizeof(uint32_t) + kProofBytes);
  EXPECT_EQ(last.substr(sizeof(uint32_t)), std::string(kProofBytes, 0));
  EXPECT_EQ(served.server.missing(), (std::vector<int>{0, 1}));
}

TEST(Reception, AcceptsARankWhileStrangersCallConstantly) {
  rlimit before{}, few{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  Served served;
  few = before, few.rlim_cur = 200;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  // Calls from another process, which has its own descriptors.
  const int port = served.port;
  std::vector<Child> strangers;
  for (int i = 0; i < 2; ++i)
    strangers.emplace_back([port] {
      std::vector<Socket> open;
      std::string why;
      for (int n = 0; n < 60'000; ++n) {
        Socket s = connect_to("127.0.0.1", port, Clock::now() + 1s, why);
        if (s && n % 2) s.send_all(kMagic, Clock::now());
        if (open.size() < 100) open.emplace_back();
        open[size_t(n) % open.size()] = std::move(s);
      }
      return 0;
    });
  std::this_thread::sleep_for(200ms);
  std::unique_ptr<KeyValueClient> zero, one;
  for (const auto until = Clock::now() + 60s; !(zero && one) && Clock::now() < until;) {
    if (!zero) zero = served.join(hello_of(0));
    if (!one) one = served.join(hello_of(1));
  }
  ASSERT_TRUE(zero && one);
  one->set("a", "hello");
  EXPECT_EQ(zero->get("a", shortly()), "hello");
  strangers.clear();
  setrlimit(RLIMIT_NOFILE, &before);
  zero->leave();
  one->leave();
}

struct Called {
  explicit Called(size_t expected)
      : reception(listen_on(0, "127.0.0.1"), Purpose::store, kSecret, expected) {}
  Socket call() {
    std::string why;
    return connect_to("127.0.0.1", port_of(reception.listener()), shortly(), why);
  }
  std::vector<Guest> turn() {
    std::vector<pollfd> polls;
    reception.add_to(polls);
    poll(polls.data(), polls.size(), 100);
    return reception.receive(polls);
  }
  Reception reception;
};

TEST(Reception, KeepsTheExpectedNumberOfCallers) {
  for (const size_t expected : {1u, 100u}) {
    Called called(expected);
    const size_t most = std::max<size_t>(64, expected);
    std::vector<Socket> callers;
    for (size_t i = 0; i < most + 30; ++i) {
      callers.push_back(called.call());
      called.turn();
    }
    EXPECT_EQ(called.reception.waiting(), most);
    // The oldest callers were dropped; the others remain.
    for (size_t i = 0; i < callers.size(); ++i) {
      char byte = 0;
      const bool gone = recv(callers[i].fd(), &byte, 1, MSG_DONTWAIT) == 0;
      EXPECT_EQ(gone, i < 30) << i;
    }
  }
}

TEST(Reception, SurvivesALackOfDescriptors) {
  Called called(1);
  std::vector<Socket> callers, files;
  for (int i = 0; i < 10; ++i) callers.push_back(called.call());
  called.turn();
  EXPECT_EQ(called.reception.waiting(), 10u);
  for (int i = 0; i < 3; ++i) callers.push_back(called.call());
  Socket last = called.call();
  rlimit before{}, none{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = before, none.rlim_cur = 3;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  // No descriptor is left, even if others close: no caller is accepted, and nothing fails.
  for (int i = 0; i < 3; ++i) called.turn();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<Guest> guests;
  std::thread rank([&] {
    std::string why;
    for (Answer answer; answer.from != Answer::From::proven;) {
      Socket s = connect_to("127.0.0.1", port_of(called.reception.listener()), shortly(), why);
      answer = introduce(s, {Purpose::store, kSecret, "hello", Clock::now() + 2s, nullptr});
    }
  });
  for (const auto until = shortly(); guests.empty() && Clock::now() < until;) guests = called.turn();
  ASSERT_EQ(guests.size(), 1u);
  EXPECT_TRUE(guests[0].proven && guests[0].greeting.hello() == "hello");
  guests[0].socket.send_all(guests[0].greeting.answer(""), shortly());
  rank.join();
}

}  // namespace
}  // namespace cleave::comm
