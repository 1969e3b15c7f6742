#include "python/capi/reports.h"

#include <cstdio>
#include <utility>

#include "comm/traced.h"
#include "core/printable.h"
#include "monitor/live/live_run.h"
#include "monitor/monitors.h"
#include "monitor/output_file.h"
#include "plan/machine_memory.h"

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

void Reports::open_files() {
  if (ranks_.rank() != 0) return;
  const config::FlopsProfilerConfig& profile = config_.flops_profiler;
  if (profile.enabled && !profile.output_file.empty())
    monitor::OutputFile(profile.output_file, monitor::OutputFile::Open::append);
  std::vector<std::unique_ptr<monitor::Sink>> sinks =
      monitor::monitors_of(config_.tensorboard, config_.csv_monitor);
  if (!config_.http.empty()) sinks.push_back(monitor::live_run("cleave.http", config_.http, "script"));
  if (sinks.empty()) return;
  stream_.emplace(std::move(sinks));
}

bool Reports::wants_steps() const {
  return trace_ || (ranks_.rank() == 0 && (has_monitors() || profile_ || config_.steps_per_print > 0));
}

void Reports::scalar(const std::string& tag, double value, int64_t samples) {
  if (stream_) stream_->emit(monitor::Measured{{tag, value}, samples});
}

void Reports::say(const std::string& text) {
  if (ranks_.rank() != 0) return;
  if (text.starts_with("warning: "))
    std::fprintf(stderr, "%s\n", printable(text).c_str());
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
    event.metrics.times_ms =
        profile_->end_step({r.step, seconds, [&] { return plan::memory_use_of(engine); }});
  if (stream_) stream_->emit(std::move(event));
  return text_.taken();
}

void Reports::close() {
  if (stream_) stream_->close();
}

std::string Reports::end() {
  read_events();
  if (profile_) profile_->end(false);
  return text_.taken();
}

}  // namespace cleave::capi
