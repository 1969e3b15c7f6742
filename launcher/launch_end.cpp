// Texts about the end of a job.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "launcher/launch.h"

namespace cleave::launcher {

int cause_of(const std::vector<std::pair<int, int>>& rank_and_exit) {
  const auto first = [&](auto matches) {
    const auto it = std::find_if(rank_and_exit.begin(), rank_and_exit.end(),
                                 [&](const auto& e) { return matches(e.second); });
    return it == rank_and_exit.end() ? -1 : it->first;
  };
  constexpr int kLost = int(Exit::rank_lost), kStopped = int(Exit::stopped);
  int rank = first([](int exit) { return exit != 0 && exit != kLost && exit != kStopped; });
  if (rank < 0) rank = first([](int exit) { return exit == kLost; });
  if (rank < 0) rank = first([](int exit) { return exit == kStopped; });
  return rank;
}

int left_before(int cause, const std::vector<std::pair<int, int>>& rank_and_exit) {
  int left = -1;
  for (const auto& [rank, exit] : rank_and_exit) {
    if (rank == cause) return exit == int(Exit::rank_lost) ? left : -1;
    if (left < 0 && (exit == 0 || exit == int(Exit::stopped))) left = rank;
  }
  return -1;
}

std::string end_of_rank(int rank, int exit) {
  return exit > 128 && exit < 128 + NSIG
             ? fmt::format("rank {} was killed by signal {} ({})", rank, exit - 128, strsignal(exit - 128))
             : fmt::format("rank {} ended with exit code {}", rank, exit);
}

void pass_on(int signal, PassedSignals& passed, const LaunchCallbacks& callbacks,
             const std::function<void(int signal)>& send) {
  const int sent = passed.take(signal);
  if (sent == 0) return;
  if (callbacks.say && sent == SIGKILL) callbacks.say("killing the ranks");
  if (callbacks.say && (sent == SIGINT || sent == SIGTERM))
    callbacks.say(fmt::format("asked the ranks to stop: {}. Another Ctrl-C or signal kills them",
                              callbacks.when_asked));
  send(sent);
}

}  // namespace cleave::launcher
