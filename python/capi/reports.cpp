#include "python/capi/reports.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "comm/traced.h"
#include "config_schema/resolved_values.h"
#include "core/json_path.h"
#include "core/warnings.h"
#include "monitor/live/live_run.h"
#include "monitor/monitors.h"
#include "monitor/output_file.h"
#include "plan/machine_memory.h"
#include "plan/memory_json.h"

namespace cleave::capi {

using Clock = std::chrono::steady_clock;

Reports::Reports(const config::DsConfig& config, comm::Communicator& ranks)
    : config_(config), ranks_(ranks), text_(config.steps_per_print) {
  if (monitor::Profile::wanted(config_)) {
    trace_ = std::make_unique<Trace>(Trace::Keep::none);
    traced_ = comm::traced_communicator(ranks_, *trace_);
  }
  if (trace_ || config_.memory_breakdown)
    profile_.emplace(config_, config::Front::scripts, trace_.get(), ranks_,
                     [this](const std::string& text) { say(text); });
}

void Reports::open_files(const config::ReadResult& read, const std::string& model,
                         const runtime::EngineBase& engine) {
  if (ranks_.rank() != 0) return;
  const config::FlopsProfilerConfig& profile = config_.flops_profiler;
  if (profile.enabled && !profile.output_file.empty())
    monitor::OutputFile(profile.output_file, monitor::OutputFile::Open::append);
  std::vector<std::unique_ptr<monitor::Sink>> sinks = monitor::monitors_of(config_);
  if (config_.wandb.enabled) sinks.push_back(queue_.sink("wandb"));
  if (!config_.http.empty()) sinks.push_back(monitor::live_run("cleave.http", config_.http, model));
  if (sinks.empty()) return;
  stream_.emplace(std::move(sinks));
  const nlohmann::json planned = plan::as_json(engine.memory_planned());
  if (wants(monitor::kinds_of<monitor::Started>()))
    stream_->emit(monitor::Started{
        .step = engine.step(),
        .fields = nlohmann::json{{"config", config::resolved_values(read)},
                                 {"world_size", engine.mesh().size()},
                                 {"mesh", plan::as_json(engine.mesh())},
                                 {"model", path_in_json(model)},
                                 {"parameters", engine.params()},
                                 {"step", engine.step()},
                                 {"memory_planned", planned}}
                      .dump(),
        .files = {{"ds_config.json", config::shared_text(read)}, {"plan.json", planned.dump(2)}}});
  if (wants(monitor::kinds_of<monitor::Allocated>()))
    stream_->emit(
        monitor::allocated(monitor::Allocated::Kind::planned, engine.step(), engine.memory_planned()));
}

bool Reports::wants_steps() const {
  return trace_ || (ranks_.rank() == 0 && (has_monitors() || profile_ || config_.steps_per_print > 0));
}

void Reports::scalar(const std::string& tag, double value, int64_t samples) {
  if (stream_) stream_->emit(monitor::Measured{{tag, value}, samples});
}

void Reports::say(const std::string& text) {
  if (ranks_.rank() != 0) return;
  if (constexpr std::string_view kWarning = "warning: "; text.starts_with(kWarning))
    print_warning(text.substr(kWarning.size()));
  else
    text_.take(monitor::Said{text});
}

void Reports::watch() {
  if (!trace_) return;
  profile_->listen();
  if (!began_) began_ = Clock::now();
}

void Reports::begin_step(int64_t steps, std::optional<monitor::ProfiledEngine> engine) {
  watch();
  if (trace_) profile_->begin_step(steps, std::move(engine));
}

void Reports::read_events() {
  if (trace_) trace_->end_step();
}

void Reports::time(monitor::Timer timer, bool begins) {
  if (!trace_) return;
  watch();
  if (begins)
    profile_->timers().start(timer);
  else
    profile_->timers().stop(timer);
}

std::string Reports::end_step(const runtime::EngineBase& engine, const runtime::StepResult& r,
                              int64_t samples) {
  monitor::Stepped event{.metrics = {.step = r.step,
                                     .loss = r.loss,
                                     .lr = r.lr,
                                     .grad_norm = r.grad_norm,
                                     .loss_scale = r.loss_scale,
                                     .skipped = r.skipped,
                                     .skipped_total = r.skipped_total},
                         .samples = samples};
  if (ranks_.rank() == 0) text_.take(event);
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - began_.value_or(now)).count();
  began_.reset();
  if (profile_)
    event.metrics.times_ms = profile_->end_step({r.step, seconds, [&] {
                                                   memory(engine);
                                                   return plan::memory_use_of(engine);
                                                 }});
  if (profile_ && wants(monitor::kinds_of<monitor::Communicated>()))
    if (auto sums = profile_->take_collectives(); !sums.empty())
      stream_->emit(monitor::Communicated{r.step, std::move(sums)});
  if (stream_) stream_->emit(std::move(event));
  return text_.taken();
}

void Reports::memory(const runtime::EngineBase& engine) {
  using monitor::Allocated;
  if (!wants(monitor::kinds_of<Allocated>())) return;
  stream_->emit(monitor::allocated(Allocated::Kind::live, engine.step(), engine.memory_live()));
  stream_->emit(monitor::allocated(Allocated::Kind::peak, engine.step(), engine.memory_peak()));
}

void Reports::checkpointed(monitor::Checkpointed::Kind kind, const std::string& path, int64_t step,
                           Clock::time_point begin) {
  if (!wants(monitor::kinds_of<monitor::Checkpointed>())) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  stream_->emit(monitor::Checkpointed{kind, path, step, checkpoint::bytes_of_checkpoint(path), seconds});
}

std::string Reports::take_events(bool wait) {
  if (wait && stream_ && owner_ == getpid()) stream_->flush();
  return queue_.take();
}

void Reports::close(const runtime::EngineBase* engine) {
  if (!stream_ || owner_ != getpid() || std::exchange(closed_, true)) return;
  if (engine) {
    memory(*engine);
    stream_->emit(
        monitor::Ended{.fields = nlohmann::json{{"step", engine->step()},
                                                {"memory_peak", plan::as_json(engine->memory_peak())}}
                                     .dump()});
  }
  stream_->close();
}

std::string Reports::end() {
  read_events();
  if (profile_) profile_->end(false);
  return text_.taken();
}

}  // namespace cleave::capi
