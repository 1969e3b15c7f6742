#include "runtime/step/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace cleave::runtime {
namespace {

double total(const RankTimes& t) { return std::accumulate(t.in_calls.begin(), t.in_calls.end(), 0.0); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<double> own_times(std::span<const RankTimes> ranks, std::span<const int> peers) {
  std::vector<double> own;
  for (size_t r = 0; r < ranks.size(); ++r) {
    double least = std::numeric_limits<double>::infinity();
    for (size_t p = 0; p < ranks.size(); ++p)
      if (peers[p] == peers[r]) least = std::min(least, total(ranks[p]));
    own.push_back(std::max(0.0, ranks[r].step - (total(ranks[r]) - least)));
  }
  return own;
}

Stragglers::Stragglers(double share, int64_t steps, std::vector<int> peers, std::vector<std::string> hosts)
    : share_(share),
      steps_(steps),
      peers_(std::move(peers)),
      hosts_(std::move(hosts)),
      slow_(peers_.size(), 0) {}

std::vector<std::string> Stragglers::see(std::span<const RankTimes> ranks) {
  std::vector<std::string> lines;
  const std::vector<double> own = own_times(ranks, peers_);
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<double> others;
    std::array<double, 3> waits = {};  // peers' time in calls beyond that of this rank
    for (size_t p = 0; p < ranks.size(); ++p) {
      if (p == r || peers_[p] != peers_[r]) continue;
      others.push_back(own[p]);
      for (size_t i = 0; i < waits.size(); ++i) waits[i] += ranks[p].in_calls[i] - ranks[r].in_calls[i];
    }
    const double usual = others.empty() ? 0 : median(others);
    const bool slow = !others.empty() && ranks[r].step > 0 && own[r] > (1 + share_) * usual;
    slow_[r] = slow ? slow_[r] + 1 : 0;
    if (slow_[r] != steps_) continue;
    const auto phase = size_t(std::max_element(waits.begin(), waits.end()) - waits.begin());
    lines.push_back(fmt::format(
        "rank {} on {} is slower than its peers in {} consecutive steps: {:.3g} s of own time per step, the "
        "others {:.3g} s; they wait for it in the {}",
        r, hosts_[r], steps_, own[r], usual, RankTimes::kPhases[phase]));
  }
  return lines;
}

}  // namespace cleave::runtime
