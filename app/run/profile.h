// Reports of a run about its steps that a ds_config enables: wall_clock_breakdown, flops_profiler,
// comms_logger, memory_breakdown and dump_state. All measurements come from trace events.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config_schema/read_config.h"
#include "monitor/comms_log.h"
#include "monitor/layer_profile.h"
#include "monitor/step_times.h"
#include "runtime/engine.h"

namespace cleave::app {

class Profile {
 public:
  using Say = std::function<void(const std::string& line)>;  // prints on the first rank only

  // Returns true if the configuration enables a report that needs a trace.
  static bool wanted(const config::DsConfig& config);

  // `trace` is the engine's, or null; it and `world` must outlive the profile. On every rank.
  Profile(const config::DsConfig& config, Trace* trace, comm::Communicator& world, Say say);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Prints dump_state: every effective value, and the memory of each unit.
  void start(const runtime::Engine& engine, const config::ReadResult& config);

  // Call around each train_batch; end_step is collective. Returns the times of the step on this
  // rank if wall_clock_breakdown is enabled.
  void begin_step(const runtime::Engine& engine);
  std::optional<monitor::PhaseTimes> end_step(const runtime::Engine& engine, double seconds);
  // Measures host time outside of steps: waiting for data, saving.
  template <class Work>
  auto timed(monitor::Phase phase, const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    const Timer timer{times_, phase, begin};
    return work();
  }

  // Prints the remaining reports after the last step. Collective.
  void end();

 private:
  struct Timer {
    monitor::StepTimes& times;
    monitor::Phase phase;
    std::chrono::steady_clock::time_point begin;
    ~Timer() {
      const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
      times.add(phase, ms.count());
    }
  };
  void see(const TraceEvent& event);
  void tell_times();
  void tell_layers(const runtime::Engine& engine, double seconds);
  void write_layers(const std::string& text);

  const config::DsConfig& config_;
  Trace* trace_;
  comm::Communicator& world_;
  Say say_;
  monitor::StepTimes times_;
  monitor::PhaseTimes total_{};  // of steps that were not reported yet
  double total_ms_ = 0;
  int64_t steps_ = 0;
  bool first_ = true;
  monitor::CommsLog comms_;
  std::optional<monitor::LayerTimes> layers_;  // of the profiled step
};

}  // namespace cleave::app
