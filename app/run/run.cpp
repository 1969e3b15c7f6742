#include "app/run/run.h"

#include "app/named_line.h"
#include "app/run/data_position.h"
#include "app/run/ending.h"
#include "app/run/evaluations.h"
#include "app/run/roll_back.h"
#include "app/run/run_facts.h"
#include "app/run/saving.h"
#include "app/run/train_paths.h"
#include "app/run/training_steps.h"
#include "app/tokenizer_files.h"
#include "core/warnings.h"
#include "launcher/placed_rank.h"
#include "plan/fit_layers.h"

namespace cleave::app {
namespace {

// Bytes of a GPU that the context, libraries and messages use (plan::GpuReserve), at most.
constexpr int64_t kOfLibraries = int64_t{3} << 30;

// The steps of a run, with saves and evaluations.
class Loop {
 public:
  explicit Loop(RunParts& run) : run_(run) {}

  Exit run() {
    if (run_.unfinished_save || (rolls_back(run_.engine.config()) && run_.engine.step() == 0)) saving_.save();
    while (!ending_.over()) {
      if (!steps_.take()) continue;
      const bool asked = ending_.vote_to_save();
      if (ending_.stopped() || ending_.at_end()) break;
      save_and_evaluate(asked || due(run_.wanted.save_interval), due(run_.wanted.eval_interval));
    }
    run_.engine.synchronize();
    if (ending_.stopped())
      run_.watch.say("stop requested: " + saving_.said(fmt::format("after step {}", run_.engine.step())));
    save_and_evaluate(true, !ending_.stopped() && evaluations_.due_at_end());
    saving_.finish();
    if (!ending_.stopped()) ending_.say_early(), saving_.write_export();
    run_.profile.end();
    if (!ending_.stopped()) evaluations_.say_ngrams();
    run_.watch.report().end(run_.engine, run_.best, ending_.stopped(), run_.facts.at("tokenizer") != "ids");
    return ending_.stopped() ? Exit::stopped : Exit::ok;
  }

 private:
  bool due(int64_t interval) const { return interval > 0 && run_.engine.step() % interval == 0; }

  // If evaluations select checkpoints or stop the training, the save follows and contains the
  // result; otherwise the save comes first, because an evaluation may take long.
  void save_and_evaluate(bool saves, bool evaluates) {
    const bool judges = run_.wanted.judges(), keeps = run_.wanted.keep_best;
    if (saves && !judges) saving_.save();
    const bool evaluated = evaluates && evaluations_.evaluate();
    const bool better = evaluated && run_.best.take(run_.engine.step(), evaluations_.loss());
    if (keeps) run_.folder.keep_best(run_.best.step());
    if (judges && (saves || (better && keeps))) saving_.save();
  }

  RunParts& run_;
  Saving saving_{run_};
  Ending ending_{run_, saving_};
  Evaluations evaluations_{run_, ending_};
  TrainingSteps steps_{run_, saving_};
};

// Returns the schedule's keys that follow from --steps: the end, unless the file has it, and a warm-up that
// is a share of the steps.
std::vector<std::string> set_by_steps(const config::ReadResult& config, const config::AutoValues& values) {
  const std::optional<double> warmup = values.warmup_steps;
  const bool share = warmup.value_or(0) == 0 ? values.warmup_ratio.value_or(0) > 0 : *warmup < 1;
  std::vector<std::string> keys;
  for (const config::Note& n : config.notes)
    if (n.origin != "user" && (n.path == "scheduler.params.total_num_steps" ||
                               (share && n.path == "scheduler.params.warmup_num_steps")))
      keys.push_back(n.path);
  return keys;
}

}  // namespace

Run::Run(const RunOptions& wanted, launcher::Job& job, config::ReadResult& config, RunData data)
    : wanted_(wanted),
      job_(job),
      read_(config),
      data_(std::move(data)),
      model_(config_of(wanted.model,
                       wanted.tokenizer ? wanted.tokenizer->vocab_size() : data_.training().vocab())),
      weights_(wanted, model_),
      before_(wanted, config, job),
      watch_(wanted, config, job),
      folder_(
          {.dir = wanted.output,
           .resume = wanted.resume,
           .keep = keep_rule(wanted, config.config),
           .strict = wanted.strict,
           .follows_steps = set_by_steps(config, wanted.values),
           .reset_optimizer = wanted.reset_optimizer,
           .reset_adapters = wanted.reset_adapters},
          job, [this](const std::string& text) { watch_.say(text); },
          [this](monitor::Checkpointed event) { watch_.report().emit(std::move(event)); }) {
  data_.use_vocab(model_.vocab);
  model::check_kernels(model_, job.device());
  if (wanted.resume == "never" || wanted.output.empty() ||
      checkpoint::checkpoint_folders(wanted.output).empty())
    weights_.find();
  data_.open_evaluation();
}

// Without a launcher that replaces ranks, copies would only cost memory.
void Run::keep_copies() {
  if (!read_.config.copies_in_memory || job_.may_replace()) return;
  if (job_.first())
    warn(
        "cleave.copies_in_memory: no effect, because no launcher replaces ranks of this job; start it on one "
        "host with cleave launch --max_restarts N");
  read_.config.copies_in_memory = false;
}

void Run::check_plan(const config::ReadOptions& reading) {
  keep_copies();
  const comm::RankInfo& me = job_.info();
  MemoryLimits limits = memory_limits(wanted_.ranks);
  const bool fits = read_.config.checkpointing.policy == config::CheckpointingPolicy::fit;
  if (fits && job_.device().is_cuda() && limits.device_bytes == MemoryLimits::kNone)
    limits.device_bytes = cuda_gpu(job_.device()).memory_bytes - kOfLibraries;
  const Planner planner(model_, wanted_.model, me.world, reading, {me.local_size, job_.device(), limits});
  planner.fit(read_.config);
  before_.check_plan(planner, data_);
}

// Ranks with other numbers of layers would wait for each other forever.
void Run::agree_on_layers() {
  const std::string mine = plan::format_layers(read_.config.checkpointing), first = job_.from_first(mine);
  job_.together([&] {
    require(
        mine == first, Exit::usage,
        "activation_checkpointing.policy: \"fit\" chose other layers on rank 0, which has another amount of "
        "memory (got {}, expected {}); pass the same --device_memory to all ranks",
        mine, first);
  });
  if (!mine.empty() && !measured_) watch_.say(named_line("recomputed", "layers by pipeline rank: " + mine));
}

Exit Run::train(const comm::Facts& facts) {
  bool again = job_.replaces();
  if (again) copies_ = runtime::StateCopies(job_.board()->held());
  if (!again) before_.check_ranks(data_, folder_, watch_);
  for (;; again = true) {
    std::string reason;
    try {
      return train_once(again);
    } catch (const Error& e) {
      if (e.exit() != Exit::rank_lost || !job_.can_join_again()) throw;
      reason = e.what();
    }
    watch_.leave();
    job_.join_again(read_.config, facts, reason);
  }
}

Exit Run::train_once(bool again) {
  if (again) before_.join_again(folder_, watch_);
  agree_on_layers();
  const DataPlace place = data_place(read_.config, watch_.world().rank(), watch_.world().size());
  data::TokenBatches batches = data_.batches(read_.config, place);
  if (!std::exchange(measured_, true))
    watch_.report().measure_peak(job_.device(), runtime::model_dtype(read_.config));
  // Destroyed while the error propagates, so that a background save gives up.
  struct Drop {
    std::unique_ptr<runtime::Engine>& engine;
    ~Drop() { engine.reset(); }
  } const drop{engine_};
  make_engine(again);
  monitor::Profile profile(read_.config, config::Front::train, watch_.trace(), job_.world(),
                           [this](const std::string& line) { watch_.say(line); });
  RunParts parts{.wanted = wanted_,
                 .job = job_,
                 .engine = *engine_,
                 .data = data_,
                 .batches = batches,
                 .place = place,
                 .folder = folder_,
                 .watch = watch_,
                 .profile = profile,
                 .epoch = wanted_.epoch,
                 .best = Best({wanted_.patience, wanted_.threshold}),
                 .facts = run_facts(wanted_, model_, read_.config, data_.training())};
  engine_->name_samples([&](const auto& micro) { return samples_of(parts, micro); });
  parts.step_recorder = step_recorder_.get();
  if (step_recorder_) step_recorder_->engine_is_made(parts.facts);
  if (read_.config.copies_in_memory) parts.copies = &copies_;
  again ? begin_again(parts) : begin(parts);
  if (!wanted_.record.folder.empty()) parts.recorder.emplace(wanted_.record, *engine_, job_.first());
  const Exit end = Loop(parts).run();
  if (parts.recorder) parts.recorder->finish();
  return end;
}

void Run::make_engine(bool again) {
  if (read_.config.record_steps.interval > 0)
    step_recorder_ = std::make_unique<StepRecorder>(wanted_, read_, job_, watch_.world(),
                                                    [this](const std::string& text) { watch_.say(text); });
  engine_ = std::make_unique<runtime::Engine>(
      read_.config,
      [this](const model::Axes& axes) {
        return model::make_model(model_, runtime::model_dtype(read_.config), wanted_.model.seq_len,
                                 wanted_.model.model, axes);
      },
      step_recorder_ ? step_recorder_->ranks() : watch_.world(),
      runtime::EngineOptions{.seed = wanted_.seed,
                             .limits = memory_limits(wanted_.ranks),
                             .device = job_.device(),
                             .weights_follow = again,
                             .copies = read_.config.copies_in_memory ? &copies_ : nullptr,
                             .trace = watch_.trace()});
  if (again) return;
  const std::string warning = warning_of_little_space(wanted_, read_.config, engine_->params());
  if (!warning.empty()) watch_.say("warning: " + warning);
}

// Sets the state before the first step: a checkpoint, or the initial weights.
void Run::begin(RunParts& run) {
  const bool resumed = folder_.resume(*engine_, run.facts);
  if (resumed) run.best.restore(folder_.resumed_facts());
  if (resumed) continue_data(run);
  if (wanted_.keep_best) folder_.keep_best(run.best.step());
  const std::string weights = resumed ? "" : weights_.load(*engine_, job_);
  job_.together([&] {
    if (job_.first() && wanted_.tokenizer && !wanted_.output.empty())
      keep_tokenizer_files(*wanted_.tokenizer, wanted_.output);
  });
  watch_.report().start(*engine_, {job_.transport(), job_.threads(), launcher::place_of_process(), weights});
  for (const data::TokenFile& file : data_.training().files())
    if (!wanted_.quiet && file.vocab_is_a_guess() && !file.documents())
      watch_.say(named_line("tokens", file.describe()));
  if (resumed) check_first_loss(run);
  if (!read_.config.dump_state) return;
  for (std::string text : {"effective values:\n" + config::format(read_.notes), engine_->describe_units()}) {
    while (text.ends_with('\n')) text.pop_back();
    watch_.say(text);
  }
}

// Sets the state after lost ranks were replaced, from the copies in memory of all ranks.
void Run::begin_again(RunParts& run) {
  const std::string client = engine_->load_copies();
  run.unfinished_save = folder_.continue_at(engine_->step(), client);
  run.best.restore(folder_.resumed_facts());
  continue_data(run);
  if (wanted_.keep_best) folder_.keep_best(run.best.step());
  watch_.report().skip(job_.board()->reported());
  watch_.report().start(*engine_, {job_.transport(), job_.threads(), launcher::place_of_process(), ""}, true);
  run.replaced = true;
}

}  // namespace cleave::app
