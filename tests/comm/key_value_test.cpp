// A job's store: joining, strangers, and limits of a member.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/comm/collectives.h"
#include "tests/comm/served.h"

namespace cleave::comm {
namespace {

using namespace std::chrono_literals;
using test::has;
using test::hello_of;
using test::Served;

TEST(Hello, IsRejectedWithTheReason) {
  Served served(3);
  auto member = served.join(hello_of(1, 3));
  ASSERT_TRUE(member);
  wire::Hello other = hello_of(2, 3);
  const std::string stranger = served.refusal(other, "guess");
  EXPECT_TRUE(has(stranger, "token is wrong") && has(stranger, " has this port")) << stranger;
  EXPECT_FALSE(has(stranger, "host-a") || has(stranger, "pid 100")) << stranger;  // no details of rank 0
  other = hello_of(2, 3);
  other.job_id = "yesterday";
  EXPECT_TRUE(has(served.refusal(other), "the port belongs to job 'test', not 'yesterday'"));
  const std::string twice = served.refusal(hello_of(1, 3));
  EXPECT_TRUE(has(twice, "duplicate rank 1: pid 101 on host-a, and rank 1 (pid 101 on host-a)")) << twice;
  const std::string world = served.refusal(hello_of(2, 8));
  EXPECT_TRUE(has(world, "as one of 8") && has(world, "as one of 3")) << world;
  EXPECT_TRUE(has(served.refusal(hello_of(5, 3)), "rank 5 is out of range (the job has 3 ranks)"));
  other = hello_of(2, 3);
  other.attempt = -1;
  EXPECT_TRUE(has(served.refusal(other), " belongs to attempt -1, but attempt 0 is running"));
  other = hello_of(2, 3);
  other.version = "0.0.9";
  const std::string version = served.refusal(other);
  EXPECT_TRUE(has(version, "rank 2 (pid 102 on host-a) has cleave 0.0.9, rank 0 (pid 100 on host-a) has "))
      << version;
  other = hello_of(2, 3);
  other.port = served.port + 1;
  EXPECT_TRUE(has(served.refusal(other), "another process forwarded the call"));
  EXPECT_EQ(served.server.missing(), (std::vector<int>{0, 2}));
  EXPECT_EQ(served.server.refusals().size(), 8u);
  EXPECT_EQ(served.alarm->reason(), "");
  member->leave();
}

TEST(Hello, OfALaterAttemptIsToldToRetry) {
  Served served;
  wire::Hello next = hello_of(1);
  next.attempt = 1;
  EXPECT_FALSE(served.join(next));
  next.job_id = "";  // unknown, matches any
  next.attempt = 0;
  auto store = served.join(next);
  ASSERT_TRUE(store);
  store->leave();
}

TEST(Strangers, DisturbNoMember) {
  Served served;
  auto zero = served.join(hello_of(0));
  std::mt19937 random(1);
  std::string why;
  std::vector<Socket> silent;
  for (int i = 0; i < 300; ++i) {
    Socket s = connect_to("127.0.0.1", served.port, Clock::now() + 5s, why);
    std::string garbage(random() % 3000, 0);
    for (char& c : garbage) c = char(random());
    if (i % 4 == 1) garbage = std::string(kMagic) + garbage;
    if (i % 4 == 2) garbage = "GET / HTTP/1.1\r\n\r\n";
    if (i % 4 == 3) garbage = std::string(kMagic) + garbage.substr(0, random() % 40);
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

TEST(Hello, CannotWriteLinesIntoTheOutputOfAJob) {
  Served served;
  wire::Hello other = hello_of(1);
  other.host = "x\nerror: all is lost\x1b[2J";
  other.world = 3;
  EXPECT_TRUE(has(served.refusal(other), "x\\x0aerror: all is lost\\x1b[2J"));
  for (const std::string& text : served.server.refusals()) EXPECT_FALSE(has(text, "\n")) << text;
}

TEST(KeyValueServer, DropsAMemberThatExceedsItsLimits) {
  const std::string large(400'000, 'x');
  const auto reason_after = [](const std::function<void(KeyValueClient&, const Alarm&)>& body) {
    Served served;
    auto zero = served.join(hello_of(0));
    auto alarm = std::exchange(served.alarm, std::make_shared<Alarm>());
    auto one = served.join(hello_of(1));
    try {
      body(*one, *alarm);
    } catch (const Error&) {  // it was disconnected
    }
    const auto until = Clock::now() + 10s;
    while (alarm->reason().empty() && Clock::now() < until) std::this_thread::sleep_for(5ms);
    return alarm->reason();
  };
  EXPECT_EQ(reason_after([&](KeyValueClient& member, const Alarm& alarm) {
              for (int i = 0; i < 1000 && alarm.reason().empty(); ++i) member.set(std::to_string(i), large);
            }),
            "rank 1 (pid 101 on host-a) exceeded the storage limit");
  EXPECT_EQ(reason_after([](KeyValueClient& member, const Alarm& alarm) {
              for (int i = 0; i < 2'000'000 && alarm.reason().empty(); ++i) member.set(std::to_string(i), "");
            }),
            "rank 1 (pid 101 on host-a) exceeded the storage limit");
  for (const char* no_number : {"abc", "", "9223372036854775807", "99999999999999999999"})
    EXPECT_EQ(reason_after([&](KeyValueClient& member, const Alarm&) {
                member.set("x", no_number);
                member.add("x", 1, Clock::now() + 5s);
              }),
              "rank 1 (pid 101 on host-a) added to a value that is not a number")
        << no_number;
  EXPECT_EQ(reason_after([](KeyValueClient& member, const Alarm& alarm) {
              for (int i = 0; i < 20'000 && alarm.reason().empty(); ++i)
                member.get("never", Clock::now() - 1s);
            }),
            "rank 1 (pid 101 on host-a) waits for too many keys");
}

TEST(KeyValueServer, DropsAMemberThatDoesNotReadAnswers) {
  Served served;
  auto zero = served.join(hello_of(0));
  zero->set("large", std::string(400'000, 'x'));
  std::string why;
  Socket one = connect_to("127.0.0.1", served.port, Clock::now() + 5s, why);
  const std::string hello = wire::encode(served.at_port(hello_of(1)));
  ASSERT_EQ(introduce(one, {Purpose::store, test::kSecret, hello, Clock::now() + 5s, nullptr}).from,
            Answer::From::proven);
  const std::string ask =
      wire::Writer(wire::Type::get).put(uint64_t{1}).put(std::string_view("large")).frame();
  for (int i = 0; i < 1000 && served.alarm->reason().empty(); ++i)
    if (!one.send_all(ask, Clock::now() + 5s)) break;
  const auto until = Clock::now() + 10s;
  while (served.alarm->reason().empty() && Clock::now() < until) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(served.alarm->reason(), "rank 1 (pid 101 on host-a) does not read its answers");
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

TEST(KeyValueClient, RingsTheAlarmIfAMemberDisconnects) {
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
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_FALSE(wire::decode_hello(std::string_view(whole).substr(0, n))) << n;
  EXPECT_TRUE(wire::decode_hello(whole));
  bool bad = false;
  std::string bytes = wire::Writer(wire::Type::set).put(std::string_view("key")).frame().substr(0, 8);
  EXPECT_FALSE(wire::take_frame(bytes, 4096, bad));
  EXPECT_FALSE(bad);
  bytes = "\xff\xff\xff\xffxx";
  EXPECT_FALSE(wire::take_frame(bytes, 4096, bad));
  EXPECT_TRUE(bad);
}

}  // namespace
}  // namespace cleave::comm
