// What a job will take, without starting it: every kind of rank runs its real set-up and one real training
// step against memory that only counts and communicators that only count. So a plan is not an estimate; it is
// the engine's own arithmetic, and equals what a run measures to the byte.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/tally.h"
#include "pipeline/simulate.h"
#include "runtime/engine.h"
#include "zero/update_times.h"

namespace cleave::plan {

// What a rank sends to a group in one step.
struct GroupTraffic {
  RankGroup group;
  comm::CommBytes bytes;
  bool between_nodes = false;  // not all of the group's ranks are on one node
  int64_t total() const;
  bool operator==(const GroupTraffic&) const = default;
};

// What ranks take that all take the same.
struct RankPlan {
  std::vector<int> ranks;          // ascending; of a large job only some are tried: see JobPlan::tried_all
  MeshPlace place;                 // of the first
  MemoryTable memory;              // the most that is in use at once, by category and kind
  std::vector<GroupTraffic> sent;  // groups of one are left out
  zero::UpdateBytes update;        // of optimizer state off the device
  std::vector<kernels::Work> work = {};  // what the first of them launches in one step
  int64_t frame_bytes = 0;               // of `memory`, the activations of one micro-batch in flight

  int64_t sent_total() const;
  int64_t sent_between_nodes() const;
  // What the launches of a step pass over, and the least of it (kernels/tally.h).
  double moved() const;
  double least_moved() const;
};

struct JobPlan {
  std::string model, pipeline;  // the pipeline's line is empty with one stage
  MeshShape mesh;
  int64_t params = 0;             // of the whole model
  int64_t frozen = 0;             // of these, not trained
  double flops = 0;               // of one step over all ranks, no recomputation
  double idle_share = 0;          // of the pipeline, expected
  pipeline::Simulation timeline;  // of one step, by rank of the pipe, in units of work
  bool counts_sent = true;        // false: what ranks send is not in the plan
  bool tried_all = true;          // false: ranks at the ends of each axis stand for those between them
  std::vector<RankPlan> ranks;    // distinct, by their first rank

  // Adds a rank that was tried: to those that take the same on its stage, where there are such.
  void add(RankPlan rank);

  // Exit code memory, with the table, when a rank needs more than the limits.
  void check_fits(const MemoryLimits& limits) const;
};

// Makes the engine of one rank as the job would, over the communicator given, with the options given.
using EngineMaker = std::function<std::unique_ptr<runtime::Engine>(comm::Communicator& world,
                                                                   const runtime::EngineOptions& options)>;

// Which ranks a plan tries.
enum class PlanRanks {
  all,       // every one; of a large job the ends of the data and tensor axes on every stage
  of_stages  // the first of every stage: up to some bytes what the others take
};

// Of a mesh the ranks that such a plan tries.
std::vector<int> ranks_to_try(const MeshShape& mesh, PlanRanks ranks);

// Consecutive ranks share a node, `ranks_per_node` of them.
// Error(usage) as the engine throws when the job cannot be laid out so.
JobPlan plan_job(const config::DsConfig& config, int world, const EngineMaker& make,
                 PlanRanks ranks = PlanRanks::all, int ranks_per_node = 8);

// Runs every rank's set-up, and two steps, and matches all their calls in lockstep (plan/match_calls.h).
// Error(internal) names the first call that does not fit; otherwise how many were matched.
struct CallProof {
  int ranks = 0;
  int64_t calls = 0;
};
CallProof prove_calls(int world, const EngineMaker& make);

// The rank of each stage, in order, that needs the most: ranks of a stage may differ by some bytes.
std::vector<const RankPlan*> largest_of_stages(const JobPlan& plan);

std::string format(const JobPlan& plan);   // for people
std::string to_json(const JobPlan& plan);  // one object, all values in bytes
// One page that needs nothing else: memory over a step, the pipeline's chart, what is sent, and the tables,
// of the same ranks.
std::string to_html(const JobPlan& plan);

}  // namespace cleave::plan
