#include "monitor/comms_log.h"

#include <algorithm>
#include <numeric>

#include "core/units.h"

namespace cleave::monitor {

Bandwidth bandwidth_of(std::string_view op, int64_t bytes, int ranks, double seconds) {
  if (seconds <= 0 || ranks < 1) return {};
  const double n = ranks, algorithm = double(bytes) / seconds;
  if (op == "all_reduce") return {algorithm, algorithm * 2 * (n - 1) / n};
  if (op == "all_gather" || op == "reduce_scatter" || op == "all_to_all")
    return {algorithm, algorithm * (n - 1) / n};
  return {algorithm, algorithm};
}

std::string CommsLog::name_of(const TraceEvent& e) const {
  return options_.with_groups ? e.name : std::string(e.op);
}

bool CommsLog::see(const TraceEvent& e) {
  if (std::string_view(e.category) != "collective") return false;
  const std::vector<std::string>& wanted = options_.ops;
  const auto asked = [&](const std::string& name) { return name.starts_with(e.op); };
  if (!wanted.empty() && std::none_of(wanted.begin(), wanted.end(), asked)) return false;
  Calls& calls = rows_[{name_of(e), e.bytes, e.ranks}];
  calls.op = e.op;
  calls.seconds.push_back((e.end_us - e.begin_us) / 1e6);
  Communicated::Sum& sum = sums_[std::string(e.op)];
  ++sum.calls, sum.bytes += e.bytes, sum.seconds += calls.seconds.back();
  return true;
}

std::string CommsLog::line_of(const TraceEvent& e) const {
  const double seconds = (e.end_us - e.begin_us) / 1e6;
  const Bandwidth b = bandwidth_of(e.op, e.bytes, e.ranks, seconds);
  return fmt::format(
      "comm op: {} | time (ms): {:.3f} | msg size: {} | algbw (GB/s): {:.2f} | busbw (GB/s): {:.2f}",
      name_of(e), seconds * 1e3, format_bytes(e.bytes), b.algorithm / 1e9, b.bus / 1e9);
}

std::string CommsLog::table() const {
  size_t width = 10;
  for (const auto& [row, calls] : rows_) width = std::max(width, row.name.size());
  std::string text =
      fmt::format("{:<{}}  {:>12} {:>5} {:>8} {:>12} {:>10} {:>12} {:>12}\n", "collective", width, "size",
                  "ranks", "count", "total (ms)", "mean (ms)", "algbw (GB/s)", "busbw (GB/s)");
  for (const auto& [row, calls] : rows_) {
    std::vector<double> sorted = calls.seconds;
    std::sort(sorted.begin(), sorted.end());
    const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
    const auto cut = ptrdiff_t(sorted.size() / 10);
    const double middle = std::accumulate(sorted.begin() + cut, sorted.end() - cut, 0.0) /
                          double(ptrdiff_t(sorted.size()) - 2 * cut);
    const Bandwidth b = bandwidth_of(calls.op, row.bytes, row.ranks, middle);
    text += fmt::format("{:<{}}  {:>12} {:>5} {:>8} {:>12.2f} {:>10.3f} {:>12.2f} {:>12.2f}\n", row.name,
                        width, format_bytes(row.bytes), row.ranks, sorted.size(), total * 1e3, middle * 1e3,
                        b.algorithm / 1e9, b.bus / 1e9);
  }
  return text;
}

}  // namespace cleave::monitor
