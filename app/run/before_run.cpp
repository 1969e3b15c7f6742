#include "app/run/before_run.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/output_paths.h"
#include "app/published_model.h"
#include "app/run/many_calls.h"
#include "app/run/resume_check.h"
#include "app/run/roll_back.h"
#include "app/run/train_paths.h"
#include "core/build.h"
#include "core/units.h"
#include "core/warnings.h"
#include "device/gpu_problems.h"
#include "kernels/choices.h"
#include "kernels/matmul_ways.h"
#include "monitor/metrics.h"
#include "plan/machine_memory.h"

namespace cleave::app {

void BeforeRun::check_plan(const Planner& planner, const RunData& data) {
  const comm::RankInfo& me = job_.info();
  paths_of(wanted_, config_, me.world).require_distinct();
  require(!wanted_.output.empty() || !rolls_back(config_), Exit::usage,
          "cleave.non_finite: \"roll_back\" needs checkpoints (got no --output, expected a folder); give "
          "--output, or set \"skip\" or \"stop\"");
  if (!config_.product_choices.empty())
    kernels::Choices::of_process().replay(monitor::choices_in(config_.product_choices));
  const DataPlace place = data_place(config_, me.rank, me.world);
  data.batches(config_, place);
  for (size_t set = 0; set < data.evaluation().size(); ++set) data.eval_batches(set, config_, place);
  if (!wanted_.export_to.empty()) require_free(wanted_.export_to);
  const plan::Candidate candidate = planner.plan(read_.text, config_);
  const plan::RankPlan& mine = plan::plan_of_rank(candidate.plan, me.rank);
  if (job_.first())
    for (const std::string& w : warnings_of_many_calls(config_.zero, mine)) warn("{}", w);
  planner.require_fit(candidate, memory_limits(wanted_.ranks));
  device_bytes_ = mine.memory.total(MemoryKind::device);
  // The memory of the other ranks is in use already if this one replaces a lost rank.
  if (!job_.replaces())
    plan::require_machine_fit(candidate.plan, me.rank - me.local_rank, me.local_size,
                              !job_.device().is_cuda());
  check_recorded(candidate.plan);
  constexpr int kProved = 16;  // ranks
  if (job_.first() && me.world > 1 && me.world <= kProved)
    plan::prove_calls(me.world, planner.maker(config_));
}

// Records of steps need space for one more than are kept. The plan of a large job has the ranks at the ends
// of its axes, which represent those between them.
void BeforeRun::check_recorded(const plan::JobPlan& plan) const {
  const config::RecordSteps& rule = config_.record_steps;
  if (rule.interval == 0) return;
  require(!wanted_.output.empty(), Exit::usage,
          "cleave.record_steps.interval: needs a folder (got no --output); give --output, or set 0");
  const int world = job_.info().world;
  int64_t recording = 0, most = 0;
  for (int rank = 0; rank < world; ++rank) recording += int64_t(rule.records(rank));
  require(rule.ranks.empty() || recording == 1 + std::ranges::count(rule.ranks, ','), Exit::usage,
          "cleave.record_steps.ranks: names a rank twice or one that does not exist (got {}, expected "
          "different ranks below {})",
          rule.ranks, world);
  for (const plan::RankPlan& r : plan.ranks) most = std::max(most, r.recorded);
  const int64_t wanted = most * recording * (rule.keep + 1);
  std::error_code unknown;
  const std::filesystem::path folder = std::filesystem::absolute(wanted_.output);
  std::filesystem::path there = folder;
  while (!std::filesystem::exists(there, unknown) && there.has_relative_path()) there = there.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(there, unknown);
  require(
      unknown || space.available >= uintmax_t(wanted), Exit::usage,
      "cleave.record_steps: too little space in {} ({} are free, {} are needed for {} steps of {} ranks); "
      "free some space, or record fewer ranks",
      wanted_.output, format_bytes(int64_t(space.available)), format_bytes(wanted), rule.keep + 1, recording);
}

void BeforeRun::check_ranks(const RunData& data, RunFolder& folder, Watch& watch) const {
  folder.require_something_to_resume();
  job_.together([&] { require_gpu(); });
  job_.together([&] {
    if (job_.first()) {
      paths_of(wanted_, config_, job_.info().world).require_writable();
      for (const data::DataSources& set : data.evaluation()) set.check_all();
    } else {
      OutputPaths mine;
      mine.folder("--output", wanted_.output);
      mine.require_writable();
    }
    watch.open_report();
  });
  folder.take(std::chrono::seconds(config_.comm_timeout_s));
  watch.open_trace();
}

void BeforeRun::join_again(RunFolder& folder, Watch& watch) const {
  if (!watch.has_report()) watch.open_report();
  folder.take(std::chrono::seconds(config_.comm_timeout_s));
  watch.open_trace();
}

// Requires matrix products, in FP8 if the configuration uses them, and free memory, because other processes
// may use the GPU. Ranks that share it read the free memory before any of them allocates.
void BeforeRun::require_gpu() const {
  if (!job_.device().is_cuda()) return;
  if constexpr (build::cuda) {
    const std::string problem = kernels::gpu_matmul_problem();
    require(problem.empty(), Exit::usage, "{}", problem);
  }
  const Gpu gpu = cuda_gpu(job_.device());
  if (config_.fp8) {
    const std::string problem =
        fp8_problem(gpu, job_.device(), config_.fp8.scaling == config::Fp8Scaling::row);
    require(problem.empty(), Exit::usage, "{}", problem);
  }
  const std::string problem = memory_problem(gpu, job_.device(), device_bytes_);
  require(problem.empty(), Exit::memory, "{}", problem);
}

void check_first_loss(RunParts& run) {
  if (run.wanted.resume_check == "off" || run.engine.step() >= run.wanted.steps) return;
  const nlohmann::json& saved = run.folder.resumed_facts();
  const std::string why = run.job.from_first(
      run.job.first() ? not_comparable(saved, run.facts, run.engine.config().train_batch_size) : "");
  if (!why.empty()) return run.watch.say("the first loss is not compared with the checkpoint: " + why);
  const std::optional<FirstLoss> now = FirstLoss::of_next_step(run.engine, run.batches, run.job);
  if (!now)
    return run.watch.say(
        "the first loss is not compared with the checkpoint: it is not finite, or the samples are "
        "unavailable");
  const FirstLoss then = *FirstLoss::in(saved);
  run.job.together(Exit::checkpoint, [&] {
    const std::string wrong = difference(then, *now, saved, run.facts);
    require(wrong.empty(), Exit::checkpoint,
            "{}: the checkpoint belongs to another training, so nothing was trained or written: {}; pass "
            "--resume_check off to continue anyway",
            run.wanted.output, wrong);
  });
  run.watch.say(fmt::format("the loss of the next step is {:.6g}, the same as in the checkpoint", now->loss));
}

}  // namespace cleave::app
