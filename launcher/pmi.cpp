#include "launcher/pmi.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "comm/rendezvous/secret.h"
#include "core/printable.h"
#include "launcher/pmix.h"
#include "launcher/variables.h"

namespace cleave::launcher {
namespace {

constexpr size_t kLongestLine = 4 << 10;
constexpr const char* kKey = "cleave-secret";

// PMI-1 client: sends lines "cmd=NAME word=value ...\n" and reads one answer for each.
class Pmi {
 public:
  Pmi(int fd, comm::Clock::time_point deadline)
      : socket_(fcntl(fd, F_DUPFD_CLOEXEC, 3)), deadline_(deadline) {}

  // Answer, if it starts with the expected command and reports success.
  std::optional<std::string> ask(const std::string& command, const std::string& wanted) {
    if (!socket_.send_all("cmd=" + command + "\n", deadline_)) return failed(command, "cannot be sent");
    std::string line;
    for (char c = 0; c != '\n'; line += c)
      if (line.size() > kLongestLine || !socket_.recv_all(&c, 1, deadline_))
        return failed(command, "has no answer");
    line.pop_back();
    const std::string rc = word(line, "rc");
    if (word(line, "cmd") != wanted || (!rc.empty() && rc != "0"))
      return failed(command, "has the answer " + in_quotes(line));
    return line;
  }

  static std::string word(const std::string& line, const std::string& name) {
    const std::string words = " " + line + " ";
    const size_t at = words.find(" " + name + "=");
    if (at == std::string::npos) return {};
    const size_t begin = at + name.size() + 2;
    return words.substr(begin, words.find(' ', begin) - begin);
  }

  const std::string& why() const { return why_; }

 private:
  std::nullopt_t failed(const std::string& command, const std::string& how) {
    why_ = fmt::format("PMI: '{}' {}", command.substr(0, command.find(' ')), how);
    return std::nullopt;
  }

  comm::Socket socket_;
  const comm::Clock::time_point deadline_;
  std::string why_;
};

std::string exchange(Pmi& pmi, bool first) {
  if (!pmi.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")) return {};
  const auto name = pmi.ask("get_my_kvsname", "my_kvsname");
  if (!name) return {};
  const std::string space = Pmi::word(*name, "kvsname");
  std::string secret = first ? comm::random_secret() : std::string();
  if (first && !pmi.ask(fmt::format("put kvsname={} key={} value={}", space, kKey, secret), "put_result"))
    return {};
  if (!pmi.ask("barrier_in", "barrier_out")) return {};
  if (!first) {
    const auto got = pmi.ask(fmt::format("get kvsname={} key={}", space, kKey), "get_result");
    if (!got) return {};
    secret = Pmi::word(*got, "value");
  }
  return pmi.ask("finalize", "finalize_ack") ? secret : std::string();
}

}  // namespace

std::string secret_by_pmi(const Environment& env, comm::Clock::time_point deadline, std::string& why) {
  const Variables v(env);
  if (!v.missing({"PMI_FD", "PMI_RANK"}).empty()) return secret_by_pmix(env, deadline, why);
  Pmi pmi(v.number("PMI_FD"), deadline);
  const std::string secret = exchange(pmi, v.number("PMI_RANK") == 0);
  why = pmi.why();
  return secret;
}

}  // namespace cleave::launcher
