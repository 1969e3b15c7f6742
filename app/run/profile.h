// What a ds_config asks a run to tell about its own steps: wall_clock_breakdown, flops_profiler,
// comms_logger, memory_breakdown and dump_state. Everything that is measured comes from the events of a
// trace.
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
  using Say = std::function<void(const std::string& line)>;  // of the first rank; others say nothing

  // Whether the configuration asks for anything that needs a trace.
  static bool wanted(const config::DsConfig& config);

  // `trace` is the engine's, null where none is wanted; both it and `world` outlive the profile. On every
  // rank.
  Profile(const config::DsConfig& config, Trace* trace, comm::Communicator& world, Say say);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // dump_state: every effective value, and what each unit takes where.
  void start(const runtime::Engine& engine, const config::ReadResult& config);

  // Around each train_batch; end_step is collective. Returns the step's times on this rank where
  // wall_clock_breakdown asks for them.
  void begin_step(const runtime::Engine& engine);
  std::optional<monitor::PhaseTimes> end_step(const runtime::Engine& engine, double seconds);
  // Time that the host spends for the next step to be ended: waiting for data, saving.
  template <class Work>
  auto timed(monitor::Phase phase, const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    const Timer timer{times_, phase, begin};
    return work();
  }

  // What is left to tell after the last step. Collective.
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
  void tell_memory(const runtime::Engine& engine);
  void tell_layers(const runtime::Engine& engine, double seconds);
  void write_layers(const std::string& text);

  const config::DsConfig& config_;
  Trace* trace_;
  comm::Communicator& world_;
  Say say_;
  monitor::StepTimes times_;
  monitor::PhaseTimes total_{};  // of steps that were not told yet
  double total_ms_ = 0;
  int64_t steps_ = 0;
  bool first_ = true;
  monitor::CommsLog comms_;
  std::optional<monitor::LayerTimes> layers_;  // of the step that is profiled
};

}  // namespace cleave::app
