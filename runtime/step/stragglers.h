// Finds ranks that are slower than their peers from the times of all ranks, as plain values.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cleave::runtime {

// Times of one rank in one step, in seconds; in collectives and messages by the phase that made them.
struct RankTimes {
  static constexpr std::array<const char*, 3> kPhases = {"forward", "backward", "update"};
  double step = 0;
  std::array<double, 3> in_calls = {};
};

class Stragglers {
 public:
  // Ranks with the same number in `peers` do the same work. A rank is slow in a step if its own time is more
  // than (1 + share) times the median of its peers.
  Stragglers(double share, int64_t steps, std::vector<int> peers, std::vector<std::string> hosts);

  // Takes the times of all ranks in one step. Returns one line per rank that is now slow in `steps`
  // consecutive steps; the next line about it follows only after it was fast again.
  std::vector<std::string> see(std::span<const RankTimes> ranks);

 private:
  const double share_;
  const int64_t steps_;
  const std::vector<int> peers_;
  const std::vector<std::string> hosts_;
  std::vector<int64_t> slow_;  // consecutive steps, by rank
};

// Own times: the step without the waits for peers. Peers transfer equally much, so the time of a
// rank in calls beyond the peer with the least is a wait.
std::vector<double> own_times(std::span<const RankTimes> ranks, std::span<const int> peers);

}  // namespace cleave::runtime
