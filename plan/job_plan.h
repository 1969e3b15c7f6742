// Plan of a job without starting it: every kind of rank runs its real set-up and one real training step with
// memory and communicators that only count. A plan is therefore not an estimate: it is the engine's own
// arithmetic and equals the measured values of a run to the byte.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/tally.h"
#include "pipeline/simulate.h"
#include "plan/timeline.h"
#include "runtime/engine.h"
#include "zero/update_times.h"

namespace cleave::plan {

// Bytes that a rank sends to a group in one step.
struct GroupTraffic {
  RankGroup group;
  comm::CommBytes bytes;
  bool between_nodes = false;  // the group's ranks are on several nodes
  int64_t total() const;
  bool operator==(const GroupTraffic&) const = default;
};

// Resources of ranks with equal needs.
struct RankPlan {
  std::vector<int> ranks;          // ascending; only some are tried in a large job: see JobPlan::tried_all
  MeshPlace place;                 // of the first rank
  MemoryTable memory;              // peak use, by category and kind
  std::vector<GroupTraffic> sent;  // without groups of one
  zero::UpdateBytes update;        // of optimizer state off the device
  std::vector<kernels::Work> work = {};  // kernels that the first rank launches in one step
  int64_t frame_bytes = 0;               // part of `memory`: activations of one micro-batch in flight
  int64_t gathers = 0, reductions = 0;   // calls of one step over the data axis
  int64_t recorded = 0;  // bytes on disk of a recorded step (cleave.record_steps), without its description
  // Work of two steps, on the first rank of each stage; null on other ranks.
  std::shared_ptr<const RankWork> enqueued = {};

  int64_t sent_total() const;
  int64_t sent_between_nodes() const;
  // Bytes that the launches of a step read and write, and their minimum (kernels/tally.h).
  double moved() const;
  double least_moved() const;
};

struct JobPlan {
  std::string model, pipeline;  // pipeline: empty with one stage
  std::string recomputed;       // layers that keep less, by rank of the pipeline; empty without numbers
  MeshShape mesh;
  int64_t params = 0;             // of the whole model
  int64_t frozen = 0;             // parameters that are not trained
  double flops = 0;               // of one step over all ranks, without recomputation
  double idle_share = 0;          // expected share for the pipeline
  pipeline::Simulation timeline;  // of one step, by rank of the pipe, in units of work
  bool counts_sent = true;        // false: the plan does not cover messages
  bool tried_all = true;          // false: ranks at the ends of each axis represent those between them
  std::vector<RankPlan> ranks;    // distinct ones, by first rank

  // Adds a tried rank, merged with ranks of its stage with equal needs.
  void add(RankPlan rank);

  // Throws Error(memory) if a rank needs more than the limits; see cleave::check_fits.
  void check_fits(const MemoryLimits& limits, bool with_table = true) const;
};

// Makes the engine of one rank as in the job, over this communicator and with these options.
using EngineMaker = std::function<std::unique_ptr<runtime::Engine>(comm::Communicator& world,
                                                                   const runtime::EngineOptions& options)>;

// Selects the ranks that a plan tries.
enum class PlanRanks {
  all,       // every rank; in a large job the ends of the data and tensor axes on every stage
  of_stages  // the first rank of every stage: differs from the others by a few bytes at most
};

struct PlanOptions {
  PlanRanks ranks = PlanRanks::all;
  int ranks_per_node = 8;  // consecutive ones
  // If a rank needs more, the plan has only the memory of the ranks: of all, or of `of_stages` up to that
  // rank.
  MemoryLimits until = {};
};

// Returns the ranks of a mesh that such a plan tries.
std::vector<int> ranks_to_try(const MeshShape& mesh, PlanRanks ranks);

// Plans a job. Throws Error(usage) as the engine does if the job cannot be laid out.
JobPlan plan_job(const config::DsConfig& config, int world, const EngineMaker& make,
                 const PlanOptions& options = {});

// Runs every rank's set-up and two steps, and matches all their calls in lockstep (plan/match_calls.h).
// Throws Error(internal) with the first call that does not match; otherwise returns the number of calls.
struct CallProof {
  int ranks = 0;
  int64_t calls = 0;
};
CallProof prove_calls(int world, const EngineMaker& make);

// Returns the rank of each stage with the largest needs, in order: ranks of a stage may differ by a few
// bytes.
std::vector<const RankPlan*> largest_of_stages(const JobPlan& plan);

// Bytes of a rank's GPU outside of the plan, whose limits are those of the engine.
struct GpuReserve {
  int64_t cuda = 0;                   // context, kernels and libraries
  int64_t nccl = 0;                   // most of any rank; 0 on one rank
  std::optional<int64_t> torch = {};  // empty: unknown

  // Returns a line for users; `engine` is the planned memory of the rank with the largest needs.
  std::string line(int64_t engine) const;
};
// Without PyTorch: `torch` is 0.
GpuReserve gpu_reserve(const JobPlan& plan);
// Returns the planned device memory of the rank with the largest needs.
int64_t most_device_bytes(const JobPlan& plan);

std::string format(const JobPlan& plan);   // for users
std::string to_json(const JobPlan& plan);  // one object, all values in bytes
// Returns a self-contained page: memory over a step, the pipeline's chart, sent bytes and the tables, for the
// same ranks.
std::string to_html(const JobPlan& plan);

}  // namespace cleave::plan
