#include "app/run/profile.h"

#include <fstream>

#include "core/units.h"
#include "pipeline/partition.h"
#include "plan/machine_memory.h"

namespace cleave::app {
namespace {

monitor::CommsLogOptions log_options(const config::CommsLoggerConfig& c) {
  return {.ops = c.prof_all ? std::vector<std::string>{} : c.prof_ops, .with_groups = c.debug};
}

// prof_all false with an empty list selects no collective.
bool logs(const config::CommsLoggerConfig& c) { return c.enabled && (c.prof_all || !c.prof_ops.empty()); }

// Removes the last line break of a table.
std::string block(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

bool Profile::wanted(const config::DsConfig& c) {
  return c.wall_clock_breakdown || c.flops_profiler.enabled || logs(c.comms_logger);
}

Profile::Profile(const config::DsConfig& config, Trace* trace, comm::Communicator& world, Say say)
    : config_(config),
      trace_(trace),
      world_(world),
      say_(std::move(say)),
      comms_(log_options(config.comms_logger)) {}

Profile::~Profile() {
  if (trace_) trace_->listen({});
}

void Profile::start(const runtime::Engine& engine, const config::ReadResult& config) {
  if (!config_.dump_state) return;
  say_("effective values:\n" + block(config::format(config.notes)));
  say_(block(engine.describe_units()));
}

void Profile::begin_step(const runtime::Engine& engine) {
  if (!wanted(config_)) return;
  const config::FlopsProfilerConfig& flops = config_.flops_profiler;
  layers_.reset();
  if (flops.enabled && engine.step() == flops.profile_step) layers_.emplace(engine.layer_costs().size() - 1);
  if (config_.wall_clock_breakdown || logs(config_.comms_logger) || layers_)
    trace_->listen([this](const TraceEvent& event) { see(event); });
  else
    trace_->listen({});
}

void Profile::see(const TraceEvent& event) {
  times_.see(event);
  if (layers_) layers_->see(event);
  if (logs(config_.comms_logger) && comms_.see(event) && config_.comms_logger.verbose)
    say_(comms_.line_of(event));
}

std::optional<monitor::PhaseTimes> Profile::end_step(const runtime::Engine& engine, double seconds) {
  const monitor::PhaseTimes times = times_.take();
  if (layers_) tell_layers(engine, seconds);
  const bool due = config_.steps_per_print > 0 && engine.step() % config_.steps_per_print == 0;
  if (config_.memory_breakdown && (due || first_)) say_(plan::memory_use_of(engine));
  first_ = false;
  if (!config_.wall_clock_breakdown) return {};
  for (int p = 0; p < monitor::kPhases; ++p) total_[size_t(p)] += times[size_t(p)];
  total_ms_ += seconds * 1e3, ++steps_;
  if (due) tell_times();
  return times;
}

void Profile::end() {
  if (steps_ > 0) tell_times();
  if (logs(config_.comms_logger))
    say_(fmt::format("collectives of rank 0; latencies include the wait for other ranks:\n{}",
                     block(comms_.table())));
}

void Profile::tell_times() {
  constexpr int kColumns = monitor::kPhases + 1;
  std::vector<double> mine(total_.begin(), total_.end()), all(size_t(kColumns) * size_t(world_.size()));
  mine.push_back(total_ms_);
  Stream stream;
  world_.all_gather(Tensor(all.data(), DType::fp64, {int64_t(all.size())}, MemoryKind::host),
                    Tensor(mine.data(), DType::fp64, {kColumns}, MemoryKind::host), stream,
                    {.what = "times of phases"});
  std::vector<double> step_ms;
  std::vector<monitor::PhaseTimes> totals;
  for (int r = 0; r < world_.size(); ++r) {
    const double* row = &all[size_t(r) * size_t(kColumns)];
    std::copy(row, row + monitor::kPhases, totals.emplace_back().begin());
    step_ms.push_back(row[monitor::kPhases]);
  }
  say_(monitor::format_times(step_ms, totals, steps_));
  total_ = {}, total_ms_ = 0, steps_ = 0;
}

// Layers on several ranks are shown with the mean of their times.
void Profile::tell_layers(const runtime::Engine& engine, double seconds) {
  const std::vector<pipeline::LayerCost>& costs = engine.layer_costs();
  std::vector<double> sums = layers_->ms();  // followed by a flag per layer on this rank
  for (size_t l = 0; l < costs.size(); ++l) sums.push_back(sums[2 * l] + sums[2 * l + 1] > 0 ? 1 : 0);
  Stream stream;
  world_.all_reduce(Tensor(sums.data(), DType::fp64, {int64_t(sums.size())}, MemoryKind::host), stream,
                    {.what = "times of layers"});
  const MeshShape& mesh = engine.mesh();
  const double micros = double(config_.gradient_accumulation_steps),
               cut = double(mesh.tensor * mesh.sequence);
  std::vector<monitor::LayerRow> rows;
  double flops = 0;
  for (size_t l = 0; l < costs.size(); ++l) {
    const double holders = std::max(1.0, sums[2 * costs.size() + l]);
    rows.push_back({.name = costs[l].name,
                    .params = costs[l].params,
                    .flops = costs[l].flops * micros / cut,
                    .forward_ms = sums[2 * l] / holders,
                    .backward_ms = sums[2 * l + 1] / holders});
    flops += costs[l].flops * micros * mesh.data;
  }
  layers_.reset();
  const std::vector<std::string> facts = {
      fmt::format("after {} steps; {} ranks: {}", config_.flops_profiler.profile_step, world_.size(),
                  name_of(mesh)),
      fmt::format("batch: {} samples, {} per rank and micro-batch; {} parameters", config_.train_batch_size,
                  config_.train_micro_batch_size_per_gpu, format_count(engine.params())),
      fmt::format(
          "arithmetic of the step: {:.3f} TFLOP on all ranks, {:.3f} TFLOP/s per rank; {:.2f} samples/s",
          flops / 1e12, flops / 1e12 / seconds / world_.size(), double(config_.train_batch_size) / seconds)};
  const config::FlopsProfilerConfig& c = config_.flops_profiler;
  const std::string text = monitor::format_profile(
      rows, facts, seconds * 1e3, {.layers = c.detailed && c.module_depth != 0, .top = int(c.top_modules)});
  if (c.output_file.empty())
    say_(block(text));
  else if (world_.rank() == 0)
    write_layers(text);
}

void Profile::write_layers(const std::string& text) {
  const config::FlopsProfilerConfig& c = config_.flops_profiler;
  std::ofstream file(c.output_file);
  if (file << text && file.flush())
    say_("wrote the profile of a step to " + c.output_file);
  else
    say_(fmt::format("warning: flops_profiler.output_file: cannot be written ({}); this is the profile:\n{}",
                     c.output_file, block(text)));
}

}  // namespace cleave::app
