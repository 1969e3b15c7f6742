#include "plan/job_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "comm/planned.h"
#include "config_schema/ds_config.h"
#include "core/axis.h"
#include "core/mesh_shape.h"
#include "model/layer.h"
#include "plan/fit_layers.h"
#include "plan/match_calls.h"

namespace cleave::plan {
namespace {

constexpr int kTryAll = 64;  // maximum number of ranks

// Returns a micro-batch with real shapes and no memory.
Batch shapes_of(const model::Model& model, int64_t samples) {
  model::TensorSpec in = model.input(samples);
  in.shape.dims[0] *= model.parts;
  const int64_t rows = samples * model.rows_per_sample * model.parts;
  // Inputs of a float type come in fp32 and are cast (runtime/stage/stage.h).
  const DType dtype = in.dtype == DType::int32 ? DType::int32 : DType::fp32;
  return {
      .input = Tensor(nullptr, dtype, in.shape, MemoryKind::host),
      .targets = Tensor(nullptr, DType::int32, {rows}, MemoryKind::host),
      .valid_targets = rows,
      .documents = model.document_mask ? Tensor(nullptr, DType::int32, {rows}, MemoryKind::host) : Tensor()};
}

}  // namespace

// Returns ranks that cover the needs of all: every rank, or in a large job the ends of every axis on every
// pipeline stage.
std::vector<int> ranks_to_try(const MeshShape& mesh, PlanRanks ranks) {
  auto at_ends = [&](const MeshPlace& p) {
    return std::ranges::all_of(kMeshAxes, [&](const MeshAxis& a) {
      return a.axis == Axis::pipe || p.*a.place == 0 || p.*a.place == mesh.*a.size - 1;
    });
  };
  std::vector<int> out;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const MeshPlace p = mesh.place(rank);
    if (ranks == PlanRanks::of_stages) {
      if (axes_behind(p).without({Axis::pipe}).empty()) out.push_back(rank);
    } else if (mesh.size() <= kTryAll || at_ends(p)) {
      out.push_back(rank);
    }
  }
  return out;
}

int64_t GroupTraffic::total() const {
  return std::accumulate(bytes.sent.begin(), bytes.sent.end(), int64_t{0});
}

int64_t RankPlan::sent_total() const {
  int64_t sum = 0;
  for (const GroupTraffic& t : sent) sum += t.total();
  return sum;
}

int64_t RankPlan::sent_between_nodes() const {
  int64_t sum = 0;
  for (const GroupTraffic& t : sent) sum += t.between_nodes ? t.total() : 0;
  return sum;
}

double RankPlan::moved() const {
  return std::accumulate(work.begin(), work.end(), 0.0,
                         [](double sum, const kernels::Work& w) { return sum + w.bytes; });
}

double RankPlan::least_moved() const {
  return std::accumulate(work.begin(), work.end(), 0.0,
                         [](double sum, const kernels::Work& w) { return sum + w.least; });
}

void JobPlan::add(RankPlan rank) {
  const auto known = std::ranges::find_if(ranks, [&](const RankPlan& r) {
    return r.place.pipe == rank.place.pipe && r.memory == rank.memory && r.sent == rank.sent &&
           r.recorded == rank.recorded;
  });
  if (known == ranks.end())
    ranks.push_back(std::move(rank));
  else
    known->ranks.insert(known->ranks.end(), rank.ranks.begin(), rank.ranks.end());
}

void JobPlan::check_fits(const MemoryLimits& limits, bool with_table) const {
  for (const RankPlan& r : ranks) cleave::check_fits(r.memory, limits, with_table);
}

CallProof prove_calls(int world, const EngineMaker& make) {
  CallLog log(world);
  for (int rank = 0; rank < world; ++rank) {
    const auto ranks = comm::planned_communicator(
        rank, world,
        [&](const comm::PlannedGroup& group, const comm::Post& post) { log.add(rank, group, post); });
    const auto engine = make(*ranks, {.dry = true});
    const Batch batch = shapes_of(engine->model(), engine->samples_per_micro());
    for (int step = 0; step < 2; ++step) engine->train_batch([&](int) { return batch; });
  }
  const std::string fault = log.fault();
  CHECK(fault.empty(), "the ranks' calls do not fit together: {}", fault);
  return {world, log.calls()};
}

namespace {

// Counts the calls of a rank over the data axis.
class DataCalls {
 public:
  void add(const comm::PlannedGroup& group, const comm::Post& post) {
    count(all_, post);
    received_ += comm::received_bytes(group, post);
    if (group.path.find(in_data_) != std::string::npos) count(inside_, post);
  }
  // An axis with all ranks uses the world's communicator (comm/mesh.h).
  void write(const MeshShape& mesh, RankPlan& plan) const {
    const Calls& data = mesh.data == mesh.size() ? all_ : inside_;
    plan.gathers = data.gathers, plan.reductions = data.reductions;
  }
  int64_t received() const { return received_; }  // bytes

 private:
  struct Calls {
    int64_t gathers = 0, reductions = 0;
  };
  static void count(Calls& calls, const comm::Post& post) {
    using enum comm::Collective;
    calls.gathers += int64_t(post.op == all_gather);
    calls.reductions += int64_t(post.op == reduce_scatter || post.op == all_reduce);
  }

  const std::string in_data_ = fmt::format("/{}:", name_of(RankGroup{Axis::data}));
  Calls all_, inside_;
  int64_t received_ = 0;
};

class Job {
 public:
  Job(const config::DsConfig& config, int world, const EngineMaker& make, const PlanOptions& options)
      : config_(config), world_(world), make_(make), options_(options) {}

  JobPlan plan() {
    if (!fits()) return std::move(plan_);
    plan_ = {};
    for_each_rank([&](runtime::Engine& engine, RankPlan mine) {
      run(engine, mine);
      plan_.add(std::move(mine));
      return true;
    });
    return std::move(plan_);
  }

 private:
  using Visit = std::function<bool(runtime::Engine& engine, RankPlan mine)>;  // false: no further ranks

  void for_each_rank(const Visit& visit) {
    std::vector<int> order = {0};
    bool more = true;
    for (size_t i = 0; i < order.size() && more; ++i) {
      calls_.reset();
      const auto ranks = comm::planned_communicator(
          order[i], world_, [&](const comm::PlannedGroup& group, const comm::Post& post) {
            if (calls_) calls_->add(group, post);
          });
      const auto engine = make_(*ranks, {.dry = true});
      if (i == 0) {
        describe(*engine), order = ranks_to_try(plan_.mesh, options_.ranks);
        plan_.tried_all = int(order.size()) == world_;
      }
      more = visit(*engine, {.ranks = {order[i]},
                             .place = plan_.mesh.place(order[i]),
                             .memory = engine->memory_planned(),
                             .sent = {},
                             .update = engine->update_bytes(),
                             .frame_bytes = engine->frame_bytes()});
    }
  }

  // Otherwise the plan has the memory of the ranks: of all, or up to the first one that is too large.
  bool fits() {
    if (options_.until.device_bytes == MemoryLimits::kNone) return true;
    bool fit = true;
    for_each_rank([&](runtime::Engine&, RankPlan mine) {
      fit = fit && mine.memory.total(MemoryKind::device) <= options_.until.device_bytes;
      plan_.add(std::move(mine));
      return fit || options_.ranks == PlanRanks::all;
    });
    return fit;
  }

  void describe(const runtime::Engine& engine) {
    plan_.mesh = engine.mesh();
    plan_.model = engine.model().name, plan_.params = engine.params();
    plan_.frozen = engine.model().frozen_params();
    plan_.pipeline = engine.notes().pipeline, plan_.idle_share = engine.idle_share();
    plan_.timeline = engine.timeline();
    plan_.recomputed = format_layers(config_.checkpointing);
    plan_.flops = engine.flops_per_sample() * double(config_.train_batch_size);
  }

  // Runs one step, or two to log their work.
  void run(runtime::Engine& engine, RankPlan& mine) {
    const Batch batch = shapes_of(engine.model(), engine.samples_per_micro());
    const auto before = engine.comm_bytes_by_group();
    const kernels::Tally tally;
    std::optional<WorkLog> log;
    if (axes_behind(mine.place).without({Axis::pipe}).empty()) log.emplace();
    calls_.emplace();
    engine.train_batch([&](int) { return batch; });
    calls_->write(plan_.mesh, mine);
    mine.work = tally.work();
    const auto after = engine.comm_bytes_by_group();
    for (size_t g = 0; g < after.size(); ++g) {
      const RankRun members = plan_.mesh.members(after[g].first, mine.place, near_);
      mine.sent.push_back({.group = after[g].first,
                           .bytes = after[g].second - before[g].second,
                           .between_nodes = node(members.first) != node(members.last())});
    }
    mine.recorded = recorded_bytes(engine, batch);
    if (!log) return;
    const size_t first_step = log->entries.size();
    engine.train_batch([&](int) { return batch; });
    mine.enqueued = std::make_shared<RankWork>(work_of(*log, mine, first_step));
  }

  // The record has the state before the step, the micro-batches, and the results of the calls that publish
  // the state and take the step, which has been counted.
  int64_t recorded_bytes(runtime::Engine& engine, const Batch& batch) {
    if (config_.record_steps.interval == 0) return 0;
    const int64_t of_step = calls_->received();
    calls_.emplace();
    engine.publish_parameters();
    const int64_t data = batch.input.bytes() + batch.targets.bytes() +
                         (batch.documents.defined() ? batch.documents.bytes() : 0);
    return engine.own_state_bytes() + data * config_.gradient_accumulation_steps + of_step +
           calls_->received();
  }

  RankWork work_of(WorkLog& log, const RankPlan& rank, size_t first_step) const {
    RankWork out{.entries = std::move(log.entries), .groups = {}, .first_step = first_step};
    for (const WorkLog::Group& g : log.groups) {
      const std::string name = g.path.substr(0, g.path.rfind(':')).substr(g.path.rfind('/') + 1);
      const auto known =
          std::ranges::find_if(rank.sent, [&](const GroupTraffic& t) { return name_of(t.group) == name; });
      const RankRun ranks =
          known == rank.sent.end() ? RankRun{0, world_} : plan_.mesh.members(known->group, rank.place, near_);
      int here = 0;
      for (int i = 0; i < ranks.count; ++i) here += int(node(ranks[i]) == node(rank.ranks.front()));
      out.groups.push_back({.path = g.path, .size = g.size, .here = std::min(here, g.size), .rank = g.rank});
    }
    return out;
  }
  int node(int rank) const { return rank / options_.ranks_per_node; }

  const config::DsConfig& config_;
  const int world_;
  const EngineMaker& make_;
  const PlanOptions options_;
  const int near_ = std::max(1, config_.zero.near_ranks());
  JobPlan plan_;
  std::optional<DataCalls> calls_;
};

}  // namespace

JobPlan plan_job(const config::DsConfig& config, int world, const EngineMaker& make,
                 const PlanOptions& options) {
  return Job(config, world, make, options).plan();
}

}  // namespace cleave::plan
