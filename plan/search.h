// Searches for other configurations of the same job: changes of a ds_config that make it fit, and the fastest
// layout that fits. A change is a JSON merge patch (RFC 7386). Every configuration is judged by planning it,
// so results are as exact as the plan.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config_schema/ds_config.h"
#include "plan/job_plan.h"
#include "plan/predict.h"

namespace cleave::plan {

// Planned configuration.
struct Candidate {
  std::string text;         // ds_config as JSON
  config::DsConfig config;  // resolved `text`
  JobPlan plan;
  std::string change;  // difference from the given configuration, as JSON
  double seconds = 0;  // predicted step time; 0 without a device
};

// Plans the job of a ds_config. Returns nothing if the configuration is rejected or the job cannot be laid
// out. `every_rank` false: one rank per pipeline stage is enough.
using TryConfig = std::function<std::optional<Candidate>(const std::string& text, bool every_rank)>;

struct Changes {
  std::vector<Candidate> fitting;     // lowest cost first
  std::optional<Candidate> smallest;  // if none fits: the combination with the least memory
};

// Finds up to `most` changes of a ds_config that make a job fit: single ones if possible, otherwise
// combinations. The global batch stays the same. Empty if the text is not plain JSON or nothing saves memory.
Changes changes_that_fit(const Candidate& given, const MemoryLimits& limits, const TryConfig& plan,
                         int most = 3);

// Returns one line per change for users: the keys to set, and the memory of the largest rank before and
// after.
std::string format_changes(const Candidate& given, const Changes& changes);

// Finds the fitting configuration with the smallest predicted step time (on ties the least memory) over
// stages, offload, micro-batch sizes, pipeline schedules and the sizes of the tensor, sequence and pipeline
// axes; each recomputes what does not fit (plan/fit_layers.h). Offloads
// only if nothing fits otherwise. The global batch stays the same. Cuts
// sequences by powers of two inside a node, if a whole sequence is too large for a rank or there are more
// ranks than samples. Returns nothing if none fits.
struct Suggestion {
  Candidate best;
  int tried = 0, fitting = 0;
};
std::optional<Suggestion> suggest(const Candidate& given, const MemoryLimits& limits,
                                  const DeviceModel& device, const TryConfig& plan);

// Returns a text for users: time and memory of the given and the found configuration, and the difference.
std::string format_gain(const Candidate& given, const Suggestion& found, const MemoryLimits& limits,
                        const DeviceModel& device);

}  // namespace cleave::plan
