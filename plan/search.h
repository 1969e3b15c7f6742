// Other configurations of the same job: changes of a ds_config that make it fit, and the fastest layout that
// does. A change is a JSON merge patch (RFC 7386), and every configuration is judged by planning it, so what
// is said about it is as exact as the plan.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config_schema/ds_config.h"
#include "plan/job_plan.h"
#include "plan/predict.h"

namespace cleave::plan {

// A configuration that was planned.
struct Candidate {
  std::string text;         // the ds_config, as JSON
  config::DsConfig config;  // the same, resolved
  JobPlan plan;
  std::string change;  // what differs from the given one, as JSON
  double seconds = 0;  // of a step, predicted; 0 without a device
};

// Plans the job that a ds_config asks for. Nothing when the configuration is refused, or the job cannot be
// laid out so. `every_rank` false: one rank a stage of the pipe is enough.
using TryConfig = std::function<std::optional<Candidate>(const std::string& text, bool every_rank)>;

struct Changes {
  std::vector<Candidate> fitting;     // the least costly first
  std::optional<Candidate> smallest;  // when none fits: the combination that needs the least memory
};

// Finds at most `most` changes of a ds_config that make a job fit: single ones if one is enough, otherwise
// combinations. The global batch stays. Empty if the text is not plain JSON or nothing saves memory.
Changes changes_that_fit(const Candidate& given, const MemoryLimits& limits, const TryConfig& plan,
                         int most = 3);

// For people, one line per change: the keys to set and the memory of the rank that needs the most, before
// and after.
std::string format_changes(const Candidate& given, const Changes& changes);

// The configuration with the smallest predicted step time that fits, of equal times the one with the least
// memory, over stages, offload, micro-batch sizes,
// activation checkpointing and the sizes of the tensor, sequence and pipeline axes; the global batch stays.
// Sequences are cut over powers of two inside a node, where a whole one is too much for a rank or there are
// more ranks than samples. Nothing when none fits.
struct Suggestion {
  Candidate best;
  int tried = 0, fitting = 0;
};
std::optional<Suggestion> suggest(const Candidate& given, const MemoryLimits& limits,
                                  const DeviceModel& device, const TryConfig& plan);

// For people: time and memory of the given configuration and of the one found, and the difference.
std::string format_gain(const Candidate& given, const Suggestion& found, const MemoryLimits& limits,
                        const DeviceModel& device);

}  // namespace cleave::plan
