// The shared secret of ranks over a launcher's PMI-1; a fake launcher follows the protocol of MPICH.
#include "launcher/pmi.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"

namespace cleave::launcher {
namespace {

using namespace std::chrono_literals;

comm::Clock::time_point shortly() { return comm::Clock::now() + 10s; }

constexpr int kRanks = 3;

struct Server {
  Server() {
    for (int r = 0; r < kRanks; ++r) {
      int ends[2] = {};
      CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      ours[size_t(r)] = comm::Socket(ends[0]), theirs[size_t(r)] = comm::Socket(ends[1]);
    }
  }
  Environment of(int rank) const {
    return {{"PMI_FD", std::to_string(theirs[size_t(rank)].fd())},
            {"PMI_RANK", std::to_string(rank)},
            {"PMI_SIZE", std::to_string(kRanks)}};
  }
  std::string line(int rank) {
    std::string text;
    for (char c = 0; c != '\n' && ours[size_t(rank)].recv_all(&c, 1, shortly());) text += c;
    return text;
  }
  void say(int rank, const std::string& text) { ours[size_t(rank)].send_all(text, shortly()); }
  // One step of all ranks: the request of each, and the answer to it.
  void expect(const std::string& said, const std::string& answer, int first = 0, int last = kRanks) {
    for (int r = first; r < last; ++r) EXPECT_EQ(line(r), said) << r;
    for (int r = first; r < last; ++r) say(r, answer);
  }
  std::array<comm::Socket, kRanks> ours, theirs;
};

TEST(Pmi, GivesAllRanksTheSecretOfTheFirst) {
  Server server;
  std::array<std::string, kRanks> secrets, whys;
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r)
    ranks.emplace_back(
        [&, r] { secrets[size_t(r)] = secret_by_pmi(server.of(r), shortly(), whys[size_t(r)]); });
  server.expect("cmd=init pmi_version=1 pmi_subversion=1\n",
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
  server.expect("cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=kvs_7_0\n");
  const std::string put = server.line(0), before = "cmd=put kvsname=kvs_7_0 key=cleave-secret value=";
  ASSERT_TRUE(put.starts_with(before)) << put;
  const std::string secret = put.substr(before.size(), put.size() - before.size() - 1);
  EXPECT_EQ(secret.size(), 32u);
  server.say(0, "cmd=put_result rc=0 msg=success\n");
  server.expect("cmd=barrier_in\n", "cmd=barrier_out\n");
  server.expect("cmd=get kvsname=kvs_7_0 key=cleave-secret\n",
                "cmd=get_result rc=0 msg=success value=" + secret + "\n", 1);
  server.expect("cmd=finalize\n", "cmd=finalize_ack\n");
  for (std::thread& t : ranks) t.join();
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(secrets[size_t(r)], secret) << whys[size_t(r)];
}

TEST(Pmi, NamesTheRequestWithoutAnswer) {
  const auto why_after = [](const std::string& answer) {
    Server server;
    server.say(1, answer);
    if (answer.empty()) server.ours[1].close();
    std::string why;
    EXPECT_EQ(secret_by_pmi(server.of(1), comm::Clock::now() + 200ms, why), "");
    return why;
  };
  EXPECT_EQ(why_after(""), "PMI: 'init' cannot be sent");
  EXPECT_EQ(why_after("cmd=response_to_init"), "PMI: 'init' has no answer");  // the line is incomplete
  EXPECT_EQ(why_after(std::string(100'000, 'x')), "PMI: 'init' has no answer");
  EXPECT_EQ(why_after("cmd=response_to_init rc=-1\n"),
            "PMI: 'init' has the answer 'cmd=response_to_init rc=-1'");
  EXPECT_EQ(why_after("cmd=response_to_init rc=0\nHTTP/1.1\x1b[2J\n"),
            "PMI: 'get_my_kvsname' has the answer 'HTTP/1.1\\x1b[2J'");
  std::string why;
  EXPECT_EQ(secret_by_pmi({{"PMI_RANK", "0"}}, shortly(), why), "");
  EXPECT_EQ(why, "");
}

}  // namespace
}  // namespace cleave::launcher
