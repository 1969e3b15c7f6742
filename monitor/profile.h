// Reports about steps that a ds_config enables: wall_clock_breakdown, flops_profiler, comms_logger and
// memory_breakdown, of cleave train and of PyTorch scripts. Measurements come from trace events and, for
// passes outside of the engine, from timers and from their caller.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config_schema/read_config.h"
#include "core/mesh_shape.h"
#include "monitor/comms_log.h"
#include "monitor/layer_profile.h"
#include "monitor/step_times.h"
#include "monitor/time_columns.h"
#include "pipeline/partition.h"

namespace cleave::monitor {

// An engine that computes layers, for the profile of a step.
struct ProfiledEngine {
  std::vector<pipeline::LayerCost> layers;  // with the head last
  MeshShape mesh;
  int64_t params = 0;
};

struct EndedStep {
  int64_t step = 0;  // 1-based
  double seconds = 0;
  std::function<std::string()> memory;  // text of memory_breakdown
};

class Profile {
 public:
  using Say = std::function<void(const std::string& line)>;  // prints on the first rank only

  // Returns true if the configuration enables a report that needs a trace.
  static bool wanted(const config::DsConfig& config);

  // `trace` is the engine's, or null; it, the configuration and `world` must outlive the profile. On every
  // rank.
  Profile(const config::DsConfig& config, config::Front front, Trace* trace, comm::Communicator& world,
          Say say);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Returns true if the step after `steps` steps is the one of flops_profiler.
  bool profiles(int64_t steps) const;
  // Reads the events of work from now on, unless the configuration needs none.
  void listen();
  // Call around each step; end_step is collective, and begin_step may follow passes of the step that have no
  // layers. `engine`: needed if it computes the layers of a profiled step. Returns the times of the step on
  // this rank by curve, if wall_clock_breakdown is enabled.
  void begin_step(int64_t steps, std::optional<ProfiledEngine> engine);
  std::map<std::string, double> end_step(const EndedStep& ended);
  // Returns the collectives since the last call, by kind, if comms_logger is enabled; with verbose, those of
  // its ops.
  std::map<std::string, Communicated::Sum> take_collectives() { return comms_.take_sums(); }
  // Takes the profile of this step from a caller that computes; facts describe the measurement.
  void take_layers(std::vector<LayerRow> rows, std::vector<std::string> facts);
  Timers& timers() { return timers_; }
  // Measures host time outside of steps: waiting for data, saving.
  template <class Work>
  auto timed(Phase phase, const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    const Timed timed{times_, phase, begin};
    return work();
  }

  // The table of comms_logger up to now; empty if it is off.
  std::string collectives() const;
  // Prints the remaining reports after the last step. `together`: collective, with the times of all ranks.
  void end(bool together = true);

 private:
  struct Timed {
    StepTimes& times;
    Phase phase;
    std::chrono::steady_clock::time_point begin;
    ~Timed() {
      const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - begin;
      times.add(phase, ms.count());
    }
  };
  struct Layers {
    std::vector<LayerRow> rows;
    std::vector<std::string> facts;
  };
  void see(const TraceEvent& event);
  void tell_times(bool together);
  Layers layers_of(const ProfiledEngine& engine, double seconds);
  void tell_layers(const Layers& layers, double seconds);
  void write_layers(const std::string& text);

  const config::DsConfig& config_;
  const config::Front front_;
  Trace* trace_;
  comm::Communicator& world_;
  Say say_;
  StepTimes times_;
  Timers timers_;
  std::vector<double> total_;  // by column, of steps that were not reported yet
  int64_t steps_ = 0;
  bool first_ = true, listens_ = false;
  CommsLog comms_;
  // Of the profiled step: its engine with the times of the layers, or the layers of the caller.
  std::optional<ProfiledEngine> engine_;
  std::optional<LayerTimes> layers_;
  std::optional<Layers> given_;
};

}  // namespace cleave::monitor
