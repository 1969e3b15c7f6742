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

std::string format_times(const std::vector<double>& step_ms, const std::vector<PhaseTimes>& totals,
                         int64_t steps) {
  std::string text = "time (ms)";
  const auto column = [&](std::string_view name, auto of_rank) {
    double least = of_rank(0), most = least;
    for (size_t r = 1; r < totals.size(); ++r)
      least = std::min(least, of_rank(r)), most = std::max(most, of_rank(r));
    if (most <= 0) return;
    text += fmt::format(" | {}: {:.2f}", name, of_rank(0));
    if (totals.size() > 1) text += fmt::format(" [{:.2f} to {:.2f}]", least, most);
  };
  column("step", [&](size_t r) { return step_ms[r] / double(steps); });
  for (int p = 0; p < kPhases; ++p)
    column(name_of(Phase(p)), [&](size_t r) { return totals[r][size_t(p)] / double(steps); });
  return text;
}

}  // namespace cleave::monitor
