#include "monitor/profile.h"

#include <algorithm>
#include <fstream>

#include "core/units.h"

namespace cleave::monitor {
namespace {

CommsLogOptions log_options(const config::CommsLoggerConfig& c) {
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

Profile::Profile(const config::DsConfig& config, config::Front front, Trace* trace, comm::Communicator& world,
                 Say say)
    : config_(config),
      front_(front),
      trace_(trace),
      world_(world),
      say_(std::move(say)),
      total_(names_of_columns(front).size()),
      comms_(log_options(config.comms_logger)) {}

Profile::~Profile() {
  if (trace_) trace_->listen({});
}

bool Profile::profiles(int64_t steps) const {
  return config_.flops_profiler.enabled && steps == config_.flops_profiler.profile_step;
}

void Profile::listen() {
  const bool now = config_.wall_clock_breakdown || logs(config_.comms_logger) || layers_;
  if (!trace_ || now == listens_) return;
  listens_ = now;
  if (now)
    trace_->listen([this](const TraceEvent& event) { see(event); });
  else
    trace_->listen({});
}

void Profile::begin_step(int64_t steps, std::optional<ProfiledEngine> engine) {
  layers_.reset(), engine_.reset();
  if (profiles(steps)) engine_ = std::move(engine);
  if (engine_) layers_.emplace(engine_->layers.size() - 1);
  listen();
}

void Profile::see(const TraceEvent& event) {
  times_.see(event);
  if (layers_) layers_->see(event);
  if (logs(config_.comms_logger) && comms_.see(event) && config_.comms_logger.verbose)
    say_(comms_.line_of(event));
}

void Profile::take_layers(std::vector<LayerRow> rows, std::vector<std::string> facts) {
  given_ = {std::move(rows), std::move(facts)};
}

std::map<std::string, double> Profile::end_step(const EndedStep& ended) {
  const MeasuredStep measured{ended.seconds * 1e3, times_.take(), timers_.take()};
  if (engine_) given_ = layers_of(*engine_, ended.seconds);
  if (given_) tell_layers(*given_, ended.seconds);
  layers_.reset(), engine_.reset(), given_.reset();
  const bool due = config_.steps_per_print > 0 && ended.step % config_.steps_per_print == 0;
  if (config_.memory_breakdown && (due || first_)) say_(ended.memory());
  first_ = false;
  if (!config_.wall_clock_breakdown) return {};
  const std::vector<double> times = columns_of(front_, measured);
  const std::vector<std::string_view> curves = curves_of_columns(front_);
  std::map<std::string, double> out;
  for (size_t c = 0; c < times.size(); ++c) {
    total_[c] += times[c];
    if (!curves[c].empty()) out[std::string(curves[c])] = times[c];
  }
  ++steps_;
  if (due) tell_times(true);
  return out;
}

std::string Profile::collectives() const {
  if (!logs(config_.comms_logger)) return "";
  return fmt::format("collectives of rank 0; latencies include the wait for other ranks:\n{}",
                     block(comms_.table()));
}

void Profile::end(bool together) {
  if (steps_ > 0) tell_times(together);
  if (const std::string table = collectives(); !table.empty()) say_(table);
}

void Profile::tell_times(bool together) {
  const auto columns = total_.size();
  std::vector<std::vector<double>> of_ranks = {total_};
  if (together) {
    std::vector<double> all(columns * size_t(world_.size()));
    Stream stream;
    world_.all_gather(Tensor(all.data(), DType::fp64, {int64_t(all.size())}, MemoryKind::host),
                      Tensor(total_.data(), DType::fp64, {int64_t(columns)}, MemoryKind::host), stream,
                      {.what = "times of phases"});
    of_ranks.clear();
    for (size_t r = 0; r < size_t(world_.size()); ++r)
      of_ranks.emplace_back(all.begin() + ptrdiff_t(r * columns), all.begin() + ptrdiff_t((r + 1) * columns));
  }
  say_(format_times(names_of_columns(front_), of_ranks, steps_));
  std::fill(total_.begin(), total_.end(), 0);
  steps_ = 0;
}

// Layers on several ranks are shown with the mean of their times.
Profile::Layers Profile::layers_of(const ProfiledEngine& engine, double seconds) {
  const std::vector<pipeline::LayerCost>& costs = engine.layers;
  std::vector<double> sums = layers_->ms();  // followed by a flag per layer on this rank
  for (size_t l = 0; l < costs.size(); ++l) sums.push_back(sums[2 * l] + sums[2 * l + 1] > 0 ? 1 : 0);
  Stream stream;
  world_.all_reduce(Tensor(sums.data(), DType::fp64, {int64_t(sums.size())}, MemoryKind::host), stream,
                    {.what = "times of layers"});
  const MeshShape& mesh = engine.mesh;
  const double micros = double(config_.gradient_accumulation_steps),
               cut = double(mesh.tensor * mesh.sequence);
  Layers out;
  double flops = 0;
  for (size_t l = 0; l < costs.size(); ++l) {
    const double holders = std::max(1.0, sums[2 * costs.size() + l]);
    out.rows.push_back({.name = costs[l].name,
                        .params = costs[l].params,
                        .flops = costs[l].flops * micros / cut,
                        .forward_ms = sums[2 * l] / holders,
                        .backward_ms = sums[2 * l + 1] / holders});
    flops += costs[l].flops * micros * mesh.data;
  }
  out.facts = {
      fmt::format("after {} steps; {} ranks: {}", config_.flops_profiler.profile_step, world_.size(),
                  name_of(mesh)),
      fmt::format("batch: {} samples, {} per rank and micro-batch; {} parameters", config_.train_batch_size,
                  config_.train_micro_batch_size_per_gpu, format_count(engine.params)),
      fmt::format(
          "arithmetic of the step: {:.3f} TFLOP on all ranks, {:.3f} TFLOP/s per rank; {:.2f} samples/s",
          flops / 1e12, flops / 1e12 / seconds / world_.size(), double(config_.train_batch_size) / seconds)};
  return out;
}

void Profile::tell_layers(const Layers& layers, double seconds) {
  const config::FlopsProfilerConfig& c = config_.flops_profiler;
  const std::string text =
      format_profile(layers.rows, layers.facts, seconds * 1e3,
                     {.layers = c.detailed && c.module_depth != 0, .top = int(c.top_modules)});
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

}  // namespace cleave::monitor
