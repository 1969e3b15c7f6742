#include "app/run/run_report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/named_line.h"
#include "app/run/end_lines.h"
#include "app/run/matmul_peak.h"
#include "config_schema/resolved_values.h"
#include "core/json_path.h"
#include "core/printable.h"
#include "kernels/choices.h"
#include "kernels/matmul_ways.h"
#include "monitor/event_stream.h"
#include "monitor/live/live_run.h"
#include "monitor/metrics_sink.h"
#include "monitor/monitors.h"
#include "monitor/terminal_sink.h"
#include "plan/memory_json.h"

namespace cleave::app {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

int columns_of_terminal() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

config::DsConfig with(config::DsConfig config, const RunOptions& options) {
  config.mlflow.enabled |= options.report_to == "mlflow";
  return config;
}

}  // namespace

struct RunReport::Sinks {
  Sinks(const RunOptions& o, const config::ReadResult& c)
      : options(o), config(c), epoch(o.epoch), monitors(monitor::monitors_of(with(c.config, o))) {
    const std::string& asked = c.config.http;
    if (!o.http.empty() || !asked.empty())
      live = monitor::live_run(o.http.empty() ? "cleave.http" : "--http", o.http.empty() ? asked : o.http,
                               o.output.empty() ? o.model.model : o.output);
  }

  int64_t samples(int64_t step) const { return epoch.trained(step, config.config.train_batch_size); }
  // Opens the metrics file, which continues that of a resumed run.
  void open(bool resumes) {
    std::vector<std::unique_ptr<monitor::Sink>> sinks;
    sinks.push_back(std::make_unique<monitor::TerminalSink>(
        monitor::TerminalOptions{.steps_per_print = config.config.steps_per_print,
                                 .is_terminal = terminal,
                                 .columns = columns_of_terminal()}));
    if (!options.metrics.empty())
      sinks.push_back(std::make_unique<monitor::MetricsSink>(
          "--metrics", std::make_unique<monitor::MetricsFile>(options.metrics, resumes)));
    if (live) sinks.push_back(std::move(live));
    std::move(monitors.begin(), monitors.end(), std::back_inserter(sinks));
    const std::lock_guard lock(mutex);
    stream.emplace(std::move(sinks));
  }

  void emit(monitor::Event event) {
    const std::lock_guard lock(mutex);
    if (stream)
      stream->emit(std::move(event));
    else
      early.push_back(std::move(event));
  }

  const RunOptions& options;
  const config::ReadResult& config;
  EpochLength epoch;
  std::vector<std::unique_ptr<monitor::Sink>> monitors;  // until the stream is open
  std::unique_ptr<monitor::Sink> live;                   // likewise; listens since the start
  std::mutex mutex;                   // guards the next two: a background save reports on its thread
  std::vector<monitor::Event> early;  // before the stream
  std::optional<monitor::EventStream> stream;
  int ranks = 1;
  double peak = 0, loss = 0, step_seconds = 0;
  int64_t steps = 0, tokens = 0;  // of this run
  Clock::time_point begin;
  bool terminal = false;
  int64_t first_step = 0;
  launcher::Reported reported;               // by earlier processes too
  std::map<std::string, int64_t> evaluated;  // newest step by data
};

RunReport::RunReport(bool first, const RunOptions& options, const config::ReadResult& config) {
  if (first) sinks_ = std::make_unique<Sinks>(options, config);
}

RunReport::~RunReport() = default;

void RunReport::measure_peak(Device device, DType type) {
  if (sinks_) sinks_->peak = matmul_flops_per_s(device, type);
}

launcher::Reported RunReport::reported() const {
  if (!sinks_) return {};
  launcher::Reported reported{sinks_->reported.step, sinks_->reported.evaluation};
  for (const auto& [data, step] : sinks_->evaluated)
    reported.evaluation = std::max(reported.evaluation, step);
  return reported;
}

void RunReport::skip(launcher::Reported earlier) {
  if (!sinks_) return;
  launcher::Reported& reported = sinks_->reported;
  reported = {std::max(reported.step, earlier.step), std::max(reported.evaluation, earlier.evaluation)};
}

void RunReport::write_out() {
  constexpr std::chrono::milliseconds kMost{50};
  if (sinks_ && sinks_->stream) sinks_->stream->write_out(kMost);
}

void RunReport::count_epochs(const EpochLength& epoch) {
  if (sinks_) sinks_->epoch = epoch;
}

void RunReport::start(const runtime::Engine& engine, const StartFacts& facts, bool quietly) {
  if (!sinks_ || sinks_->stream) return;
  Sinks& s = *sinks_;
  s.ranks = engine.mesh().size(), s.first_step = engine.step();
  s.begin = Clock::now();
  s.terminal = isatty(STDOUT_FILENO) != 0;
  s.open(engine.step() > 0);
  json start = json{{"config", config::resolved_values(s.config)},
                    {"world_size", s.ranks},
                    {"mesh", plan::as_json(engine.mesh())},
                    {"pipeline", engine.notes().pipeline},
                    {"transport", facts.transport},
                    {"model", path_in_json(engine.model().name)},
                    {"parameters", engine.params()},
                    {"step", engine.step()},
                    {"steps", s.options.steps},
                    {"steps_per_epoch", s.epoch.steps},
                    {"samples_per_epoch", s.epoch.samples},
                    {"matmul_flops_per_s", s.peak},
                    {"memory_planned", plan::as_json(engine.memory_planned())}};
  if (!engine.device().is_cuda()) start["products"] = kernels::describe_matmul_ways();
  s.stream->emit(monitor::Started{.step = engine.step(),
                                  .steps = s.options.steps,
                                  .epochs = s.epoch.epochs(engine.step()),
                                  .steps_per_epoch = s.epoch.steps,
                                  .fields = start.dump(),
                                  .files = {{"ds_config.json", config::shared_text(s.config)},
                                            {"plan.json", start["memory_planned"].dump(2)}}});
  s.stream->emit(
      monitor::allocated(monitor::Allocated::Kind::planned, engine.step(), engine.memory_planned()));
  for (monitor::Event& event : std::exchange(s.early, {})) s.stream->emit(std::move(event));
  if (!quietly) named(start_lines(engine, facts, s.options, s.epoch, s.config));
}

void RunReport::step(const runtime::Engine& engine, const runtime::StepResult& r, const StepCost& cost) {
  if (!sinks_ || r.step <= sinks_->reported.step) return;
  Sinks& s = *sinks_;
  s.reported.step = r.step, s.loss = r.loss, ++s.steps, s.step_seconds += cost.seconds;
  const config::DsConfig& c = engine.config();
  monitor::StepMetrics m{.step = r.step,
                         .epoch = s.epoch.epochs(r.step),
                         .loss = r.loss,
                         .lr = r.lr,
                         .grad_norm = r.grad_norm,
                         .loss_scale = r.loss_scale,
                         .skipped = r.skipped,
                         .skipped_total = r.skipped_total};
  m.tokens = c.train_batch_size * engine.model().rows_per_sample * engine.model().parts;
  s.tokens += m.tokens;
  m.tokens_per_s = double(m.tokens) / cost.seconds, m.step_ms = cost.seconds * 1e3;
  m.mfu = double(c.train_batch_size) * engine.flops_per_sample() / (cost.seconds * s.peak * s.ranks);
  for (int i = 0; i < comm::kCollectives; ++i)
    if (const int64_t bytes = cost.sent[comm::Collective(i)])
      m.comm_bytes[std::string(comm::name_of(comm::Collective(i)))] = bytes;
  m.times_ms = cost.times;
  if (kernels::Choices::Map made = kernels::Choices::of_process().take_new(); !made.empty())
    s.stream->emit(monitor::Chosen{std::move(made)});
  if (!cost.collectives.empty()) s.stream->emit(monitor::Communicated{r.step, cost.collectives});
  s.stream->emit(monitor::Stepped{.metrics = std::move(m), .samples = s.samples(r.step)});
}

void RunReport::evaluation(int64_t step, const std::string& data, const runtime::Evaluation& result) {
  if (!sinks_) return;
  int64_t& newest = sinks_->evaluated.try_emplace(data, sinks_->reported.evaluation).first->second;
  if (step <= newest) return;
  newest = step;
  const monitor::EvaluationMetrics metrics{.step = step,
                                           .epoch = sinks_->epoch.epochs(step),
                                           .data = data,
                                           .loss = result.loss,
                                           .accuracy = result.accuracy()};
  sinks_->stream->emit(monitor::Evaluated{metrics, sinks_->samples(step)});
}

void RunReport::emit(monitor::Event event) {
  if (sinks_) sinks_->emit(std::move(event));
}

void RunReport::memory(const runtime::Engine& engine) {
  using monitor::Allocated;
  if (!sinks_ || !sinks_->stream->wants(monitor::kinds_of<Allocated>())) return;
  emit(monitor::allocated(Allocated::Kind::live, engine.step(), engine.memory_live()));
  emit(monitor::allocated(Allocated::Kind::peak, engine.step(), engine.memory_peak()));
}

void RunReport::line(const std::string& text) {
  if (!sinks_) return;
  print(printable(text));
}

void RunReport::print(const std::string& text) {
  if (sinks_->stream) {
    sinks_->stream->emit(monitor::Said{text});
  } else {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

void RunReport::named(const std::vector<config::NamedValue>& lines) {
  const char* no_color = std::getenv("NO_COLOR");
  const bool bold = sinks_->terminal && (!no_color || !*no_color);
  for (const config::NamedValue& l : lines) {
    std::string text = printable(l.name.empty() ? l.value : named_line(l.name, l.value));
    if (bold && !l.name.empty()) text = "\x1b[1m" + text.insert(l.name.size() + 1, "\x1b[0m");
    print(text);
  }
}

void RunReport::end(const runtime::Engine& engine, const Best& best, bool stopped, bool has_tokenizer) {
  if (!sinks_) return;
  Sinks& s = *sinks_;
  memory(engine);
  s.stream->emit(monitor::Ended{
      .fields = json{{"step", engine.step()}, {"memory_peak", plan::as_json(engine.memory_peak())}}.dump(),
      .stopped = stopped});
  const EndFacts facts{.step = engine.step(),
                       .steps = s.steps,
                       .loss = s.loss,
                       .tokens = s.tokens,
                       .step_seconds = s.step_seconds,
                       .seconds = std::chrono::duration<double>(Clock::now() - s.begin).count(),
                       .stopped = stopped,
                       .has_tokenizer = has_tokenizer};
  if (!s.options.quiet) named(end_lines(facts, best, s.options));
  s.stream->flush();
}

}  // namespace cleave::app
