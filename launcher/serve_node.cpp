#include "launcher/serve_node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "core/error.h"
#include "launcher/heartbeat.h"
#include "launcher/pieces.h"
#include "launcher/variables.h"

namespace cleave::launcher {
namespace {

// Output to the launcher on another host. Never waits: a full connection must not prevent this launcher from
// detecting that the other one is lost.
class NodeOutput {
 public:
  NodeOutput() {
    for (const int fd : kDescriptors) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }

  void say(std::string_view text, bool is_error) {
    unsent_[is_error] += in_pieces(text);
    send();
  }
  void say_word(const std::string& text) {
    say(fmt::format("{}{}\n", kNodeWord, text.substr(0, kLongestPiece - 2)), false);
  }

  // A descriptor with unsent output; -1: none.
  int full() {
    send();
    for (int i : {0, 1})
      if (!unsent_[i].empty()) return kDescriptors[i];
    return -1;
  }

  // srun interleaves lines of hosts that it has not yet forwarded when a stream ends; the stream therefore
  // stays open until the lines have arrived.
  void say_farewell(int node, int control, bool heartbeat) {
    for (const bool is_error : {false, true}) say(fmt::format("{}done {}\n", kNodeWord, node), is_error);
    finish(control, heartbeat);
    const std::string bye = fmt::format("bye {}\n", node);
    std::string heard = "\n";
    while (heard.find("\n" + bye) == std::string::npos) {
      pollfd news = {control, POLLIN, 0};
      const auto longest = std::chrono::milliseconds(kLongestSilence);
      if (poll(&news, 1, int(longest.count())) <= 0) return;
      char words[256];
      const ssize_t n = read(control, words, sizeof(words));
      if (n <= 0) return;
      heard.append(words, size_t(n));
    }
  }

  // After the ranks have ended, waits for the other launcher as long as it is alive.
  void finish(int control, bool heartbeat) {
    for (int fd; (fd = full()) >= 0;) {
      pollfd polls[] = {{fd, POLLOUT, 0}, {control, POLLIN, 0}};
      const auto longest = std::chrono::milliseconds(kLongestSilence);
      const int news = poll(polls, 2, heartbeat ? int(longest.count()) : -1);
      if (news == 0) return;
      char words[256];
      if (news > 0 && polls[1].revents && read(control, words, sizeof(words)) == 0) return;
    }
  }

 private:
  void send() {
    for (int i : {0, 1})
      while (!unsent_[i].empty()) {
        const ssize_t n = write(kDescriptors[i], unsent_[i].data(), unsent_[i].size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        unsent_[i].erase(0, n < 0 ? unsent_[i].size() : size_t(n));  // the reader is lost
      }
  }

  static constexpr int kDescriptors[] = {STDOUT_FILENO, STDERR_FILENO};
  std::string unsent_[2];
};

}  // namespace

int serve_node(const NodeStart& node, const StayOptions& stay) {
  signal(SIGPIPE, SIG_IGN);
  NodeOutput output;
  LaunchCallbacks callbacks;
  callbacks.output = [&](std::string_view line, bool is_error) { output.say(line, is_error); };
  callbacks.full = [&] { return output.full(); };
  callbacks.ended = [&](int rank, int exit, bool killed) {
    output.say_word(fmt::format("ended {} {} {:d}", rank, exit, killed));
  };
  const LaunchResult result = launch_node(node, stay, callbacks);
  if (result.cause >= 0) output.say_word(fmt::format("result {} {}", result.cause, result.message));
  if (!result.alone && stay.farewell)
    output.say_farewell(node.node, stay.control, stay.heartbeat);
  else if (!result.alone)
    output.finish(stay.control, stay.heartbeat);
  return result.exit;
}

int rank_of_mpi(const Environment& env, int world) {
  const Variables v(env);
  constexpr std::pair<const char*, const char*> kNames[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                            {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                                            {"PMI_RANK", "PMI_SIZE"},
                                                            {"PMIX_RANK", "PMI_SIZE"}};
  for (const auto& [rank, size] : kNames) {
    if (!v.has(rank)) continue;
    require(v.number(size, world) == world && v.number(rank) < world, Exit::usage,
            "{}={} and {}={}: conflict with the job, which has {} ranks", rank, v.text(rank), size,
            v.text(size), world);
    return v.number(rank);
  }
  fail(Exit::usage, "the rank is unknown: no MPI launcher variables are set");
}

}  // namespace cleave::launcher
