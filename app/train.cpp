#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/best.h"
#include "app/epochs.h"
#include "app/many_calls.h"
#include "app/planner.h"
#include "app/profile.h"
#include "app/published_model.h"
#include "app/report.h"
#include "app/resume_check.h"
#include "app/run_facts.h"
#include "app/run_folder.h"
#include "app/tokenizer_files.h"
#include "app/train_options.h"
#include "app/train_paths.h"
#include "app/train_tokens.h"
#include "comm/clock.h"
#include "comm/traced.h"
#include "data/data_sources.h"
#include "data/ngram.h"
#include "device/gpu_problems.h"
#include "kernels/choices.h"
#include "monitor/metrics.h"
#include "runtime/engine.h"
#include "runtime/pipeline_cut.h"

namespace cleave::app {
namespace {

using Clock = std::chrono::steady_clock;

// How a validation loss compares with n-gram models of the same text.
std::vector<std::string> ngram_lines(const data::DataSources& data, const data::DataSources& eval_data,
                                     const std::string& model, double validation_loss) {
  if (!data.bytes() || data.blended() || !eval_data.bytes() || eval_data.blended())
    return {"n-grams are compared for one text only"};
  const std::string train = InputFile(data.files()[0].path(), Exit::data).text(),
                    validation = InputFile(eval_data.files()[0].path(), Exit::data).text();
  const std::vector<double> losses = data::ngram_losses(data::bytes_of(train), data::bytes_of(validation));
  std::vector<std::string> lines{"validation loss in nats a byte, on the same split:"};
  for (size_t n = 0; n < losses.size(); ++n)
    lines.push_back(fmt::format("  {}-gram   {:.4f}{}", n + 1, losses[n],
                                validation_loss < losses[n] ? "   beaten" : ""));
  lines.push_back(fmt::format("  {:<8} {:.4f}", model, validation_loss));
  return lines;
}

// One training run on this rank.
class Run {
 public:
  Run(const TrainOptions& options, launcher::Job& job, const config::ReadResult& config)
      : o_(options),
        job_(job),
        read_(config),
        config_(config.config),
        data_(o_.data, {}, "--data", o_.texts),
        model_(config_of(o_.model, o_.tokenizer ? o_.tokenizer->vocab_size() : data_.vocab())),
        folder_({.dir = o_.output,
                 .resume = o_.resume,
                 .keep = keep_rule(o_, config_),
                 .strict = o_.strict,
                 .reset_optimizer = o_.reset_optimizer},
                job, [this](const std::string& text) { say(text); }) {
    data_.use_vocab(model_.vocab);
    require(data_.vocab() <= model_.vocab, Exit::data, "{} holds ids below {}, but {} has a vocabulary of {}",
            o_.named(o_.data), data_.vocab(), o_.model.model, model_.vocab);
    model::check_kernels(model_, job.device());
    if (o_.resume == "never" || o_.output.empty() || checkpoint::checkpoint_folders(o_.output).empty())
      find_weights();
    for (const EvalSet& set : o_.eval_sets)
      eval_.emplace_back(set.data, data::TokenFile::Options{.vocab = model_.vocab}, "--eval_data", o_.texts);
  }

  // Before anything is started, alike on every rank: Error(usage) where an output would overwrite an input,
  // Error(data) where data are too short, Error(memory) when the plan of the whole job exceeds the limits or
  // this machine has too little for its ranks. Small jobs also prove that the calls of all ranks fit
  // together.
  void check_plan(const Planner& planner, const std::string& config_text) {
    paths_of(o_, config_, job_.info().world).require_distinct();
    if (!config_.product_choices.empty())
      kernels::Choices::of_process().replay(monitor::choices_in(config_.product_choices));
    batches_of(job_.info().rank, job_.info().world);
    for (const data::DataSources& data : eval_) eval_batches(data);
    if (!o_.export_to.empty()) require_free(o_.export_to);
    if (job_.first())
      for (const std::string& w : warnings_of_many_calls(
               config_, model::make_model(model_, DType::fp32, o_.model.seq_len, o_.model.model),
               data_ranks_))
        std::fprintf(stderr, "warning: %s\n", w.c_str());
    const plan::Candidate candidate = planner.plan(config_text, config_);
    planner.require_fit(candidate, memory_limits(o_.ranks));
    const comm::RankInfo& me = job_.info();
    device_bytes_ = plan_of_rank(candidate.plan, me.rank).memory.total(MemoryKind::device);
    require_machine_fit(candidate.plan, me.rank - me.local_rank, me.local_size, !job_.device().is_cuda());
    constexpr int kProved = 16;  // ranks
    if (job_.first() && me.world > 1 && me.world <= kProved)
      plan::prove_calls(me.world, planner.maker(config_));
  }
  const model::ModelConfig& model() const { return model_; }

  int train() {
    prepare();
    comm::Communicator& world = traced_ ? *traced_ : job_.world();
    data::TokenBatches batches = batches_of(world.rank(), world.size());
    make_engine(world);
    facts_ = run_facts(o_, model_, config_, data_);
    const bool resumed = folder_.resume(*engine_, facts_);
    if (resumed) best_.restore(folder_.resumed_facts());
    if (o_.keep_best) folder_.keep_best(best_.step());
    if (!resumed) begin();
    job_.together([&] {
      if (job_.first() && o_.tokenizer && !o_.output.empty()) keep_tokenizer_files(*o_.tokenizer, o_.output);
    });
    report_->start(*engine_, world.size(), job_.transport(), job_.threads());
    if (resumed) check_first_loss(batches);
    profile_ = std::make_unique<Profile>(config_, trace_.get(), job_.world(),
                                         [this](const std::string& line) { say(line); });
    profile_->start(*engine_, read_);
    if (engine_->step() >= o_.steps)
      say(fmt::format("already at step {} of {}: nothing to train", engine_->step(), o_.steps));
    job_.together([&] { read_ahead(batches); });
    stopped_ = job_.any(launcher::Job::stop_requested());
    saved_ = Clock::now();
    while (engine_->step() < o_.steps && !stopped_ && !best_.out_of_patience()) {
      step(batches);
      const int64_t at = engine_->step();
      const Votes votes = vote(batches);
      stopped_ = votes.stop;
      if (stopped_ || at == o_.steps) break;
      save_and_evaluate(batches, votes.save || (o_.save_interval > 0 && at % o_.save_interval == 0),
                        o_.eval_interval > 0 && at % o_.eval_interval == 0);
    }
    engine_->synchronize();
    if (stopped_) say("stop requested: " + saving(fmt::format("after step {}", engine_->step())));
    save_and_evaluate(batches, true, !stopped_ && !eval_.empty() && evaluated_at_ != engine_->step());
    folder_.finish(*engine_);
    if (!stopped_) say_best(), write_export();
    profile_->end();
    report_->end(*engine_);
    if (!stopped_ && o_.ngrams && job_.first())
      for (const std::string& line : ngram_lines(data_, eval_[0], o_.model.model, validation_loss_))
        say(line);
    return int(stopped_ ? Exit::stopped : Exit::ok);
  }

 private:
  // What can fail before the training, fails here: every rank can write its files, nobody else has the
  // folder, and the evaluation data have no token that would end the last evaluation.
  void prepare() {
    folder_.require_something_to_resume();
    job_.together([&] { require_free_memory(); });
    job_.together([&] {
      if (job_.first()) {
        paths_of(o_, config_, job_.info().world).require_writable();
        for (const data::DataSources& data : eval_) data.check_all();
        report_.emplace(true, o_, read_);
      } else {
        OutputPaths mine;
        mine.folder("--output", o_.output);
        mine.require_writable();
        report_.emplace(false, o_, read_);
      }
    });
    folder_.take(std::chrono::seconds(config_.comm_timeout_s));
    make_trace();
  }

  // Whose weights the training begins with, unless it goes on with a checkpoint. Error(usage) for a folder
  // without any.
  void find_weights() {
    if (published_ || o_.init == "random") return;
    if (const auto weights = folder_of_weights(o_.model.model); !weights.empty())
      published_.emplace(weights, model_);
  }

  // A checkpoint has what became of the weights, so only a run that begins reads them.
  void begin() {
    job_.together([&] { find_weights(); });
    if (!published_) return say("weights: " + describe_random(o_.model.model, o_.seed));
    job_.together([&] {
      if (!job_.first()) return;
      published_->reader().require_tied();
      if (!o_.output.empty()) keep_model_files(published_->folder(), o_.output);
    });
    engine_->load_weights([&](const checkpoint::Record& r) { published_->reader().read(r); });
    say("weights: " + published_->describe());
  }

  // Others may use this rank's GPU. Ranks that share it find what is free before any of them takes it.
  void require_free_memory() const {
    if (!job_.device().is_cuda()) return;
    const std::string problem = memory_problem(cuda_gpu(job_.device()), job_.device(), device_bytes_);
    require(problem.empty(), Exit::memory, "{}", problem);
  }

  void make_trace() {
    comm::Communicator& all = job_.world();
    if (o_.trace.empty()) {
      if (Profile::wanted(config_)) trace_ = std::make_unique<Trace>(Trace::Keep::none);
    } else {
      // Ranks of one host have one clock.
      const double clock = job_.info().nodes > 1 ? comm::clock_offset(all, Trace::now_us).offset : 0;
      job_.together([&] {
        trace_ = std::make_unique<Trace>(Trace::file_of(o_.trace, all.rank(), all.size()), all.rank(),
                                         o_.trace_steps, clock);
      });
    }
    if (trace_) traced_ = comm::traced_communicator(all, *trace_);
  }

  void make_engine(comm::Communicator& world) {
    engine_ = std::make_unique<runtime::Engine>(
        config_,
        [this](const model::Axes& axes) {
          return model::make_model(model_, runtime::model_dtype(config_), o_.model.seq_len, o_.model.model,
                                   axes);
        },
        world,
        runtime::EngineOptions{.seed = o_.seed,
                               .limits = memory_limits(o_.ranks),
                               .device = job_.device(),
                               .trace = trace_.get()});
    if (const std::string warning = warning_of_little_space(o_, config_, engine_->params()); !warning.empty())
      say("warning: " + warning);
  }

  // Those of a rank of so many.
  data::TokenBatches batches_of(int rank, int world) {
    const MeshShape mesh = runtime::mesh_shape(config_, world);
    place_ = mesh.place(rank), data_ranks_ = mesh.data;
    return data::TokenBatches(data_.sources(), {.seq_len = o_.model.seq_len,
                                                .micro_batch = config_.train_micro_batch_size_per_gpu,
                                                .accumulation = config_.gradient_accumulation_steps,
                                                .rank = place_.data,
                                                .ranks = data_ranks_,
                                                .seed = o_.seed,
                                                .drop_last = config_.dataloader_drop_last,
                                                .pack = o_.pack,
                                                .document_mask = o_.model.document_mask});
  }

  data::EvalBatches eval_batches(const data::DataSources& data) const {
    return data::EvalBatches(data.files(), {.seq_len = o_.model.seq_len,
                                            .micro_batch = config_.train_micro_batch_size_per_gpu,
                                            .rank = place_.data,
                                            .ranks = data_ranks_,
                                            .pack = o_.pack,
                                            .document_mask = o_.model.document_mask});
  }

  // Until the next step's data are there; throws what is wrong with them.
  void read_ahead(data::TokenBatches& batches) {
    if (engine_->step() >= o_.steps) return;
    data_.require_unchanged();
    profile_->timed(monitor::Phase::data, [&] { batches.prepare(engine_->step()); });
  }

  // After a step: whether any rank was asked to stop or to save. When one cannot read what the next step
  // needs, all save and then throw its Error(data); when one could not save behind the training, all throw
  // why.
  struct Votes {
    bool stop, save;
  };
  Votes vote(data::TokenBatches& batches) {
    std::exception_ptr failure;
    try {
      read_ahead(batches);
    } catch (const Error&) {
      failure = std::current_exception();
    }
    double votes[] = {launcher::Job::stop_requested() ? 1.0 : 0, failure ? 1.0 : 0,
                      job_.first() && time_to_save() ? 1.0 : 0, folder_.look(*engine_) ? 0 : 1.0};
    Stream stream;
    job_.world().all_reduce(Tensor(votes, DType::fp64, {4}, MemoryKind::host), stream, {.what = "agreement"});
    if (votes[3] > 0) folder_.finish(*engine_);
    if (votes[1] > 0) save_and_throw(failure);
    return {.stop = votes[0] > 0, .save = votes[2] > 0};
  }

  // By the first rank's clock, or because somebody asked for it.
  bool time_to_save() {
    const auto minutes = std::chrono::duration<double, std::ratio<60>>(Clock::now() - saved_).count();
    return folder_.asked_to_save() || (o_.save_minutes > 0 && minutes >= o_.save_minutes);
  }

  // Where any rank has a failure.
  [[noreturn]] void save_and_throw(const std::exception_ptr& failure) {
    engine_->synchronize();
    say("data cannot be read: " + saving(fmt::format("after step {}", engine_->step())));
    save(), folder_.finish(*engine_);
    job_.together([&] {
      if (failure) std::rethrow_exception(failure);
    });
    throw Error(Exit::data, "another rank cannot read its data");
  }

  void step(data::TokenBatches& batches) {
    const auto begin = Clock::now();
    auto said = begin;
    const int64_t index = engine_->step();
    profile_->begin_step(*engine_);
    const BatchSource source(
        [&](int micro) {
          // A step of a large model may take minutes; whoever waits sees that it goes on.
          if (const auto now = Clock::now(); now - said > std::chrono::seconds(10)) {
            said = now;
            report_->line(fmt::format("step {}: micro-batch {} of {} begins, {:.0f} s so far", index + 1,
                                      micro + 1, config_.gradient_accumulation_steps,
                                      std::chrono::duration<double>(now - begin).count()));
          }
          return profile_->timed(monitor::Phase::data, [&] { return batches.next(index, micro); });
        },
        batches.valid_targets(index));
    const runtime::StepResult r = train_or_save(source, batches);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    report_->step(*engine_, r, seconds, profile_->end_step(*engine_, seconds));
  }

  // A step that cannot be taken leaves the state before it, which all save.
  runtime::StepResult train_or_save(const BatchSource& data, const data::TokenBatches& batches) {
    try {
      return engine_->train_batch(data);
    } catch (const Error& e) {
      if (e.exit() == Exit::data) {
        say(saving(fmt::format("what was before step {}", engine_->step() + 1)));
        save(), folder_.finish(*engine_);
        fail(Exit::data, "{}; {}", e.what(), samples_of_next_step(batches));
      }
      if (e.exit() != Exit::training) throw;
      if (!engine_->state_is_whole()) {
        say("nothing is saved: this step had begun to update the weights; with gradient_clipping set, the "
            "state before it "
            "would be saved");
        throw;
      }
      say(saving(fmt::format("what was before step {}", engine_->step() + 1)));
      save(), folder_.finish(*engine_);
      throw;
    }
  }

  // For people: "its samples are 5, 2 of a.bin and 0, 3 of b.bin".
  std::string samples_of_next_step(const data::TokenBatches& batches) const {
    constexpr int64_t kShown = 8;
    std::string text = "its samples, counted from 0, are";
    for (int64_t at = 0; at < std::min<int64_t>(kShown, config_.train_batch_size); ++at) {
      const data::Blend::Place place = batches.place(engine_->step(), at);
      text += fmt::format("{} {} of {}", at > 0 ? "," : "", place.sample,
                          data_.files()[size_t(place.source)].name());
    }
    return config_.train_batch_size > kShown ? text + " and others" : text;
  }

  // Where an evaluation decides what is kept, a save comes behind it and has what it found; else before it,
  // because an evaluation may take long.
  void save_and_evaluate(data::TokenBatches& batches, bool saves, bool evaluates) {
    if (saves && !o_.judges()) save(&batches);
    const bool evaluated = evaluates && evaluate();
    const bool better = evaluated && o_.judges() && best_.take(engine_->step(), validation_loss_);
    if (o_.keep_best) folder_.keep_best(best_.step());
    if (o_.judges() && (saves || (better && o_.keep_best))) save(&batches);
  }

  void say_best() {
    if (best_.out_of_patience())
      say(fmt::format("stopped early after step {}: {} evaluations in a row brought no smaller loss",
                      engine_->step(), best_.waited()));
    if (o_.judges() && best_.step() >= 0)
      say(fmt::format("smallest validation loss: {:.6g}, after step {}{}", best_.loss(), best_.step(),
                      o_.keep_best ? fmt::format("; {}/best names its checkpoint", o_.output) : ""));
  }

  // Data that cannot be read stand for rows without targets, so that all ranks come to the end of the
  // evaluation; then all save and throw what is wrong. None where a stop was asked for meanwhile.
  std::optional<runtime::Evaluation> evaluation_on(const data::DataSources& data, const EvalSet& set) {
    data::EvalBatches batches = eval_batches(data);
    const int64_t rows = config_.train_micro_batch_size_per_gpu * o_.model.seq_len;
    const std::vector<int32_t> input(size_t(rows), 0), targets(size_t(rows), kIgnoredTarget);
    std::vector<int32_t> documents(size_t(o_.model.document_mask ? rows : 0), 0);
    std::exception_ptr failure;
    const runtime::Evaluation result = engine_->evaluate(
        [&](int micro) -> Batch {
          try {
            return batches.next(micro);
          } catch (const Error&) {
            failure = std::current_exception();
            Batch nothing = batch_of(input, targets);
            nothing.documents =
                Tensor(documents.data(), DType::int32, {int64_t(documents.size())}, MemoryKind::host);
            return nothing;
          }
        },
        int(batches.micros()), [this] { return stopped_ = job_.any(launcher::Job::stop_requested()); });
    try {
      data.require_unchanged();
    } catch (const Error&) {
      failure = std::current_exception();
    }
    if (job_.any(bool(failure))) save_and_throw(failure);
    if (stopped_) {
      say(fmt::format("stop requested: the evaluation after step {} is not finished", engine_->step()));
      return {};
    }
    require(result.targets > 0, Exit::data,
            "--eval_data {}: no token has a loss: its loss mask or its documents hide every target",
            o_.named(set.data));
    return result;
  }

  // False where a stop was asked for meanwhile.
  bool evaluate() {
    for (size_t i = 0; i < eval_.size(); ++i) {
      const std::optional<runtime::Evaluation> result = evaluation_on(eval_[i], o_.eval_sets[i]);
      if (!result) return false;
      if (i == 0) validation_loss_ = result->loss;
      report_->evaluation(engine_->step(), o_.eval_sets[i].name, *result);
    }
    evaluated_at_ = engine_->step();
    return true;
  }

  // Of what was saved last, or of the best. ds_config's own way to ask for it names no folder, so it has one
  // here, which the next end of the training replaces.
  void write_export() {
    const bool asked = config_.zero.stage3_gather_16bit_weights_on_model_save;
    if (o_.export_to.empty() && !asked) return;
    if (o_.output.empty())
      return say(
          "stage3_gather_16bit_weights_on_model_save: nothing is written, because there is no --output");
    const std::string target = o_.export_to.empty() ? o_.output + "/hugging_face" : o_.export_to;
    job_.together([&] {
      if (job_.first())
        say(export_checkpoint(
            o_.output,
            checkpoint::latest_checkpoint(o_.output, best_.step() >= 0 && o_.keep_best ? "best" : "latest"),
            target, {.dtype = runtime::model_dtype(config_)}));
    });
  }

  // `batches`: of the steps that come next, where they can be computed.
  void save(data::TokenBatches* batches = nullptr) {
    profile_->timed(monitor::Phase::checkpoint, [&] {
      nlohmann::json facts = facts_;
      if (o_.judges()) facts["best"] = best_.json();
      if (batches && o_.resume_check == "on" && folder_.would_save(*engine_))
        if (const auto first = FirstLoss::of_next_step(*engine_, *batches, job_))
          facts["first_loss"] = first->json();
      folder_.save(*engine_, facts);
    });
    saved_ = Clock::now();
  }

  // Before anything is trained. Error(checkpoint) where the loss of the next step is not the one that the
  // checkpoint keeps.
  void check_first_loss(data::TokenBatches& batches) {
    if (o_.resume_check == "off" || engine_->step() >= o_.steps) return;
    const nlohmann::json& saved = folder_.resumed_facts();
    const std::string why =
        job_.from_first(job_.first() ? not_comparable(saved, facts_, config_.train_batch_size) : "");
    if (!why.empty()) return say("the first loss is not compared with that of the checkpoint: " + why);
    const std::optional<FirstLoss> now = FirstLoss::of_next_step(*engine_, batches, job_);
    if (!now) return say("the first loss is not compared with that of the checkpoint: it cannot be computed");
    const FirstLoss then = *FirstLoss::in(saved);
    job_.together(Exit::checkpoint, [&] {
      const std::string wrong = difference(then, *now, saved, facts_);
      require(wrong.empty(), Exit::checkpoint,
              "this is not the training that was saved in {}, and nothing is trained or written: {}. "
              "--resume_check off goes on all the same",
              o_.output, wrong);
    });
    say(fmt::format("the loss of the next step is {:.6g}, as the checkpoint has it", now->loss));
  }

  // What becomes of the state where the run ends early.
  std::string saving(const std::string& what) const {
    return o_.output.empty() ? "nothing is saved, because there is no --output" : "saving " + what;
  }

  // A line for the user, on the first rank, where the progress bar may be.
  void say(const std::string& text) {
    if (!job_.first()) return;
    if (text.starts_with("warning: ") || !report_)
      std::fprintf(stderr, "%s\n", text.c_str());
    else
      report_->line(text);
  }

  const TrainOptions& o_;
  launcher::Job& job_;
  const config::ReadResult& read_;
  const config::DsConfig& config_;
  data::DataSources data_;
  std::vector<data::DataSources> eval_;  // as the options' eval_sets
  model::ModelConfig model_;
  std::optional<PublishedModel> published_;  // whose weights training begins with
  std::optional<Report> report_;
  RunFolder folder_;
  nlohmann::json facts_;  // what checkpoints say of this run
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<comm::Communicator> traced_;
  std::unique_ptr<runtime::Engine> engine_;
  MeshPlace place_;  // all ranks of a pipe read the same samples
  int data_ranks_ = 1;
  std::unique_ptr<Profile> profile_;
  double validation_loss_ = 0;  // of the first of them
  int64_t evaluated_at_ = -1;   // step
  Best best_{{o_.patience, o_.threshold}};
  bool stopped_ = false;  // on request
  Clock::time_point saved_;
  int64_t device_bytes_ = 0;  // of this rank, as planned
};

// The configuration as far as it is known before the data are: with --epochs, these say the number of steps,
// and it is read once more.
config::ReadResult read_before_data(const TrainOptions& o, const launcher::Job& job,
                                    config::ReadOptions reading) {
  reading.steps_may_be_open = o.epochs.has_value();
  if (!o.epochs) return job.read_config(o.config, reading);
  config::ReadResult quietly = config::read_ds_config_file(o.config, reading);
  return quietly.ok() ? quietly : job.read_config(o.config, reading);
}

}  // namespace

int run_train(const Arguments& arguments) {
  TrainOptions o;
  if (!parse_options(o, arguments)) return 0;
  launcher::Job job(o.ranks);
  return job.run([&] {
    if (job.first())
      for (const std::string& note : o.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
    config::AutoValues values = o.values;
    values.hidden_size = config_of(o.model, 256).width;
    if (!o.epochs) values.total_steps = o.steps;
    config::ReadOptions reading = job.read_options(o.strict, values);
    config::ReadResult config = read_before_data(o, job, reading);
    const bool connected = tokenize_inputs(o, job, config.config);
    o.epoch = epoch_length(o, config.config);
    if (o.epochs) {
      o.steps = steps_of(*o.epochs, o.epoch), reading.auto_values.total_steps = o.steps;
      config = job.read_config(o.config, reading);
    }
    Run run(o, job, config);
    const Planner planner(run.model(), o.model, job.info().world, reading, job.info().local_size,
                          job.device());
    run.check_plan(planner, config.text);
    if (!connected) job.connect(config.config);
    launcher::Job::catch_signals();
    return run.train();
  });
}

}  // namespace cleave::app
