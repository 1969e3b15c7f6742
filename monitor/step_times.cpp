#include "monitor/step_times.h"

#include <algorithm>

namespace cleave::monitor {
namespace {

Phase phase_of_collective(std::string_view op) {
  if (op == "reduce_scatter" || op == "all_reduce") return Phase::reductions;
  if (op == "all_gather" || op == "broadcast") return Phase::gathers;
  return Phase::exchanges;
}

Phase phase_of(const TraceEvent& e) {
  const std::string_view category = e.category, name = e.name;
  if (category == "collective") return phase_of_collective(e.op);
  if (category == "forward") return Phase::forward;
  if (category == "backward" || category == "recompute") return Phase::backward;
  if (category == "pipeline")
    return name == "forward"              ? Phase::forward
           : name.starts_with("backward") ? Phase::backward
                                          : Phase::exchanges;
  if (category == "step") return Phase::update;
  if (category == "update") return name == "arrives" || name == "leaves" ? Phase::offload : Phase::update;
  return Phase::offload;
}

}  // namespace

std::string_view name_of(Phase phase) {
  constexpr std::string_view names[kPhases] = {"data",      "forward", "backward", "reductions", "gathers",
                                               "exchanges", "update",  "offload",  "checkpoint"};
  return names[size_t(phase)];
}

void StepTimes::see(const TraceEvent& e) {
  std::vector<Open>& open = open_[e.stream];
  while (!open.empty() && open.back().end_us <= e.begin_us) open.pop_back();
  const double ms = (e.end_us - e.begin_us) / 1e3;
  if (!open.empty()) add(open.back().phase, -ms);
  open.push_back({phase_of(e), e.end_us});
  add(open.back().phase, ms);
}

PhaseTimes StepTimes::take() {
  open_.clear();
  return std::exchange(times_, {});
}

std::string format_times(std::span<const std::string_view> names,
                         const std::vector<std::vector<double>>& of_ranks, int64_t steps) {
  std::string text = "time (ms)";
  for (size_t c = 0; c < names.size(); ++c) {
    const auto mean = [&](const std::vector<double>& rank) { return rank[c] / double(steps); };
    double least = mean(of_ranks[0]), most = least;
    for (const std::vector<double>& rank : of_ranks)
      least = std::min(least, mean(rank)), most = std::max(most, mean(rank));
    if (most <= 0) continue;
    text += fmt::format(" | {}: {:.2f}", names[c], mean(of_ranks[0]));
    if (of_ranks.size() > 1) text += fmt::format(" [{:.2f} to {:.2f}]", least, most);
  }
  return text;
}

}  // namespace cleave::monitor
