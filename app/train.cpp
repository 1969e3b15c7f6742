#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/planner.h"
#include "app/profile.h"
#include "app/report.h"
#include "app/session.h"
#include "app/train_options.h"
#include "checkpoint/checkpoint.h"
#include "comm/clock.h"
#include "comm/traced.h"
#include "core/units.h"
#include "data/batch_loader.h"
#include "data/ngram.h"
#include "model/config_json.h"
#include "runtime/engine.h"
#include "runtime/pipeline_plan.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// One training run on this rank.
class Run {
 public:
  Run(const TrainOptions& options, Session& session, const ReadResult& config)
      : o_(options),
        session_(session),
        read_(config),
        config_(config.config),
        data_(o_.data, {.format = TokenFile::Format::detect, .vocab = 0}),
        model_(config_of(o_.model, data_.vocab())),
        report_(session.first(), options, config) {
    require(data_.vocab() <= vocab_of(model_), Exit::data,
            "{} holds ids below {}, but {} has a vocabulary of {}", o_.data, data_.vocab(), o_.model.model,
            vocab_of(model_));
    check_kernels(model_, session.device());
    if (!o_.eval_data.empty()) eval_ = std::make_unique<TokenFile>(o_.eval_data);
  }

  // Before anything is started: throws Error(memory) when the plan of the whole job exceeds the limits, alike
  // on every rank, or when this machine has too little for its ranks. Small jobs also prove that the calls of
  // all ranks fit together.
  void check_plan(const Planner& planner, const std::string& config_text) {
    batches_of(session_.info().rank,
               session_.info().world);  // data that is too short is not the plan's fault
    const Trial trial = planner.plan(config_text, config_);
    planner.require_fit(trial, memory_limits(o_.ranks));
    const RankInfo& me = session_.info();
    require_machine_fit(trial.plan, me.rank - me.local_rank, me.local_size, !session_.device().is_cuda());
    constexpr int kProved = 16;  // ranks
    if (session_.first() && me.world > 1 && me.world <= kProved)
      prove_calls(me.world, planner.maker(config_));
  }
  const ModelConfig& model() const { return model_; }

  int train() {
    if (o_.trace.empty()) {
      if (Profile::wanted(config_)) trace_ = std::make_unique<Trace>(Trace::Keep::none);
    } else {
      Communicator& all = session_.world();
      // Ranks of one host have one clock.
      const double clock = session_.info().nodes > 1 ? clock_offset(all, Trace::now_us).offset : 0;
      trace_ = std::make_unique<Trace>(Trace::file_of(o_.trace, all.rank(), all.size()), all.rank(),
                                       o_.trace_steps, clock);
    }
    if (trace_) traced_ = traced_communicator(session_.world(), *trace_);
    Communicator& world = traced_ ? *traced_ : session_.world();
    TokenBatches batches = batches_of(world.rank(), world.size());
    engine_ = std::make_unique<Engine>(
        config_,
        [this](const Axes& axes) {
          return make_model(model_, model_dtype(config_), o_.model.seq_len, o_.model.model, axes);
        },
        world,
        EngineOptions{.seed = o_.seed,
                      .limits = memory_limits(o_.ranks),
                      .device = session_.device(),
                      .trace = trace_.get()});
    resume();
    report_.start(*engine_, world.size(), session_.transport());
    profile_ = std::make_unique<Profile>(config_, trace_.get(), session_.world(),
                                         [this](const std::string& line) { report_.line(line); });
    profile_->start(*engine_, read_);
    if (engine_->step() >= o_.steps)
      report_.line(fmt::format("already at step {} of {}: nothing to train", engine_->step(), o_.steps));
    bool stopped = false;
    while (engine_->step() < o_.steps && !stopped) {
      step(batches);
      const int64_t at = engine_->step();
      stopped = agreed(Session::stop_requested());
      if (stopped || at == o_.steps) break;
      if (o_.eval_interval > 0 && at % o_.eval_interval == 0) evaluate();
      if (o_.save_interval > 0 && at % o_.save_interval == 0) save();
    }
    engine_->synchronize();
    if (stopped) report_.line(fmt::format("stop requested: saving after step {}", engine_->step()));
    if (!stopped && eval_) evaluate();
    save();
    profile_->end();
    report_.end(*engine_);
    if (stopped && o_.output.empty()) report_.line("nothing was saved: there is no --output");
    if (!stopped && o_.ngrams && session_.first()) compare_with_ngrams();
    return int(stopped ? Exit::stopped : Exit::ok);
  }

 private:
  // Those of a rank of so many.
  TokenBatches batches_of(int rank, int world) {
    const MeshShape mesh = mesh_shape(config_, world);
    place_ = mesh.place(rank), data_ranks_ = mesh.data;
    return TokenBatches(data_, {.seq_len = o_.model.seq_len,
                                .micro_batch = config_.train_micro_batch_size_per_gpu,
                                .accumulation = config_.gradient_accumulation_steps,
                                .rank = place_.data,
                                .ranks = data_ranks_,
                                .seed = o_.seed,
                                .drop_last = config_.dataloader_drop_last});
  }

  void step(TokenBatches& batches) {
    const auto begin = Clock::now();
    auto said = begin;
    const int64_t index = engine_->step();
    profile_->begin_step(*engine_);
    const StepResult r = engine_->train_batch([&](int micro) {
      // A step of a large model may take minutes; whoever waits sees that it goes on.
      if (const auto now = Clock::now(); now - said > std::chrono::seconds(10)) {
        said = now;
        report_.line(fmt::format("step {}: micro-batch {} of {} begins, {:.0f} s so far", index + 1,
                                 micro + 1, config_.gradient_accumulation_steps,
                                 std::chrono::duration<double>(now - begin).count()));
      }
      const TokenBatch b = profile_->timed(Phase::data, [&] { return batches.next(index, micro); });
      return Batch{.input = b.input,
                   .targets = b.targets,
                   .valid_targets = b.valid_targets,
                   .position = {.first_sample = b.first_sample}};
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    report_.step(*engine_, r, seconds, profile_->end_step(*engine_, seconds));
  }

  void evaluate() {
    EvalBatches batches(*eval_, {.seq_len = o_.model.seq_len,
                                 .micro_batch = config_.train_micro_batch_size_per_gpu,
                                 .rank = place_.data,
                                 .ranks = data_ranks_});
    validation_loss_ = engine_->evaluate(
        [&](int micro) {
          const TokenBatch b = batches.next(micro);
          return Batch{.input = b.input, .targets = b.targets, .valid_targets = b.valid_targets};
        },
        int(batches.micros()));
    report_.evaluation(engine_->step(), validation_loss_);
  }

  void resume() {
    if (o_.output.empty() || o_.resume == "never") return;
    const bool named = o_.resume != "auto" && o_.resume != "required";
    // Every rank must come to the same answer, so only the first looks.
    const bool found = agreed(session_.first() && fs::exists(fs::path(o_.output) / "latest"));
    if (!found && o_.resume == "auto") return;
    const std::string client = engine_->load_checkpoint(o_.output, named ? o_.resume : "latest");
    saved_at_ = engine_->step();
    warn_of_changes(nlohmann::json::parse(client));
    report_.line(fmt::format("resumed from {} at step {}", o_.output, engine_->step()));
  }

  // Shapes that changed are refused by the checkpoint's reader; this is about what has no shape, such as a
  // rope base.
  void warn_of_changes(const nlohmann::json& client) {
    if (!client.contains("config")) return;
    for (const auto& change :
         nlohmann::json::diff(client["config"], nlohmann::json::parse(to_config_json(model_))))
      report_.line(fmt::format("warning: {} of the model is not that of the checkpoint",
                               change["path"].get<std::string>().substr(1)));
  }

  void save() {
    if (o_.output.empty() || saved_at_ == engine_->step()) return;
    const nlohmann::json client{{"model", o_.model.model},
                                {"config", nlohmann::json::parse(to_config_json(model_))},
                                {"vocab", vocab_of(model_)},
                                {"seq_len", o_.model.seq_len},
                                {"tokenizer", data_.kind() == TokenFile::Kind::bytes ? "byte" : "ids"}};
    const std::string tag = fmt::format("global_step{}", engine_->step());
    profile_->timed(Phase::checkpoint, [&] { engine_->save_checkpoint(o_.output, tag, client.dump()); });
    saved_at_ = engine_->step();
    report_.line(fmt::format("saved {}/{}", o_.output, tag));
    if (o_.keep == 0 || !session_.first()) return;
    const std::vector<std::string> all = list_checkpoints(o_.output);
    for (int64_t i = 0; i + o_.keep < int64_t(all.size()); ++i)
      fs::remove_all(fs::path(o_.output) / all[size_t(i)]);
  }

  // Whether any rank says so.
  bool agreed(bool mine) {
    double any = mine ? 1 : 0;
    Stream stream;
    session_.world().all_reduce(Tensor(&any, DType::fp64, {1}, MemoryKind::host), stream,
                                {.what = "agreement"});
    return any > 0;
  }

  void compare_with_ngrams() {
    if (data_.kind() != TokenFile::Kind::bytes || eval_->kind() != TokenFile::Kind::bytes) {
      report_.line("n-grams are compared for texts only");
      return;
    }
    const MappedFile train(o_.data), validation(o_.eval_data);
    const std::vector<double> losses = ngram_losses(train.bytes(), validation.bytes());
    report_.line("validation loss in nats a byte, on the same split:");
    for (size_t n = 0; n < losses.size(); ++n)
      report_.line(fmt::format("  {}-gram   {:.4f}{}", n + 1, losses[n],
                               validation_loss_ < losses[n] ? "   beaten" : ""));
    report_.line(fmt::format("  {:<8} {:.4f}", o_.model.model, validation_loss_));
  }

  const TrainOptions& o_;
  Session& session_;
  const ReadResult& read_;
  const DsConfig& config_;
  TokenFile data_;
  std::unique_ptr<TokenFile> eval_;
  ModelConfig model_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<Communicator> traced_;
  std::unique_ptr<Engine> engine_;
  MeshPlace place_;  // all ranks of a pipe read the same samples
  int data_ranks_ = 1;
  Report report_;
  std::unique_ptr<Profile> profile_;
  double validation_loss_ = 0;
  int64_t saved_at_ = -1;
};

}  // namespace

int run_train(const Arguments& arguments) {
  TrainOptions o;
  if (!parse_options(o, arguments)) return 0;
  Session session(o.ranks);
  return session.run([&] {
    AutoValues values = o.values;
    values.total_steps = o.steps, values.hidden_size = width_of(config_of(o.model, 256));
    const ReadOptions reading = session.read_options(o.strict, values);
    const ReadResult config = session.read_config(o.config, reading);
    Run run(o, session, config);
    const Planner planner(run.model(), o.model, session.info().world, reading, session.info().local_size);
    run.check_plan(planner, config.text);
    session.connect(std::chrono::seconds(config.config.comm_timeout_s));
    Session::catch_signals();
    const int code = run.train();
    session.leave();
    return code;
  });
}

}  // namespace cleave
