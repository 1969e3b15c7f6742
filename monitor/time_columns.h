// Columns of a step's times: those of cleave train are the phases of its trace; those of PyTorch scripts have
// the names of DeepSpeed's timers, because torch computes their passes.
#pragma once
#include <array>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "config_schema/read_config.h"
#include "monitor/step_times.h"

namespace cleave::monitor {

// Parts of a step that the caller of an engine times by itself.
enum class Timer : uint8_t { fwd, bwd, bwd_inner, step };
inline constexpr std::array<std::string_view, 4> kTimers = {"fwd", "bwd", "bwd_inner", "step"};

class Timers {
 public:
  void start(Timer timer) { began_[size_t(timer)] = Clock::now(); }  // forgets an earlier start
  void stop(Timer timer) { ms_[size_t(timer)] += Ms(Clock::now() - began_[size_t(timer)]).count(); }
  // Sums in milliseconds since the last call.
  std::array<double, kTimers.size()> take() { return std::exchange(ms_, {}); }

 private:
  using Clock = std::chrono::steady_clock;
  using Ms = std::chrono::duration<double, std::milli>;
  std::array<Clock::time_point, kTimers.size()> began_{};
  std::array<double, kTimers.size()> ms_{};
};

struct MeasuredStep {
  double ms = 0;
  PhaseTimes phases{};
  std::array<double, kTimers.size()> timers{};
};

// Names of the columns in printed lines.
std::vector<std::string_view> names_of_columns(config::Front front);
// Names of their curves, "elapsed_time_ms_" excluded; empty for a column without a curve.
std::vector<std::string_view> curves_of_columns(config::Front front);
// Milliseconds of each column. In scripts, bwd contains bwd_inner, and both may contain bwd_allreduce.
std::vector<double> columns_of(config::Front front, const MeasuredStep& step);

}  // namespace cleave::monitor
