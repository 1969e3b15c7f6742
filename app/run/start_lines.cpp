#include "app/run/start_lines.h"

#include <fmt/ranges.h>

#include <sstream>
#include <utility>

#include "app/run/epochs.h"
#include "config_schema/decay_rule.h"
#include "config_schema/summary.h"
#include "core/units.h"
#include "runtime/step/settings.h"

namespace cleave::app {
namespace {

std::string ranks_value(const runtime::Engine& engine, const StartFacts& facts) {
  const int ranks = engine.mesh().size();
  return fmt::format("{} on {}; {} per rank{}", ranks, name_of(engine.device()), facts.threads,
                     ranks > 1 ? "; " + facts.transport : "");
}

// Returns, for example, "ZeRO stage 2, 2 pipeline stages x 4 data-parallel ranks, optimizer state
// on cpu".
std::string layout_value(const runtime::Engine& engine) {
  const MeshShape& mesh = engine.mesh();
  const config::ZeroConfig& zero = engine.config().zero;
  std::string axes;
  for (const auto& [size, name] : {std::pair{mesh.pipe, "pipeline stages"},
                                   {mesh.data, "data-parallel ranks"},
                                   {mesh.sequence, "sequence-parallel ranks"},
                                   {mesh.tensor, "tensor-parallel ranks"}})
    if (size > 1) axes += fmt::format("{}{} {}", axes.empty() ? ", " : " x ", size, name);
  std::string offloaded;
  if (zero.offload_optimizer.device != config::OffloadDevice::none)
    offloaded += fmt::format(", optimizer state on {}", name_of(zero.offload_optimizer.device));
  if (zero.offload_param.device != config::OffloadDevice::none)
    offloaded += fmt::format(", weights on {}", name_of(zero.offload_param.device));
  return fmt::format("ZeRO stage {}{}{}", zero.stage, axes, offloaded);
}

std::string precision_value(const config::DsConfig& c) {
  const DType type = runtime::model_dtype(c);
  return fmt::format("{}{}{}", name_of(type), type == DType::fp32 ? "" : ", fp32 master weights",
                     c.fp8 ? fmt::format(", linear layers in fp8 ({} scaling)", name_of(c.fp8.scaling)) : "");
}

std::string memory_value(const runtime::Engine& engine, bool whole) {
  const MemoryTable& planned = engine.memory_planned();
  const char* of = engine.mesh().pipe > 1 ? "planned, rank 0" : "planned, per rank";
  if (whole) {
    std::string table = format(planned);
    table.pop_back();
    return fmt::format("{}\n{}", of, table);
  }
  std::string text;
  for (int k = 0; k < kMemoryKinds; ++k)
    if (const int64_t bytes = planned.total(MemoryKind(k)); bytes > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(MemoryKind(k)), format_bytes(bytes));
  return fmt::format("{} ({})", text, of);
}

std::string output_value(const RunOptions& o) {
  if (o.output.empty()) return "none, no checkpoints; add --output DIR to save them";
  std::string saves;
  if (o.save_interval > 0) saves += fmt::format("every {} steps, ", o.save_interval);
  if (o.save_minutes > 0) saves += fmt::format("every {} minutes, ", o.save_minutes);
  return fmt::format("{}, checkpoints {}at the end{}", o.output, saves.empty() ? "" : saves + "and ",
                     o.resume == "never" ? "" : "; run the same command again to resume");
}

// Returns the effect of the optimizer's weight decay on the whole model.
std::string decay_value(const runtime::Engine& engine) {
  const config::DsConfig& c = engine.config();
  const config::DecayRule rule(c.weight_decay_on);
  int64_t numel[2] = {0, 0}, tensors[2] = {0, 0};  // without and with decay
  for (const UnitSpec& unit : engine.model().units())
    for (const ParamSpec& p : unit.params)
      if (!unit.frozen) numel[rule.applies_to(p)] += p.whole_numel(), ++tensors[rule.applies_to(p)];
  return fmt::format("{} on {} parameters in {} tensors, 0 on {} in {} (cleave.weight_decay_on: {})",
                     c.optimizer.weight_decay, format_count(numel[1]), tensors[1], format_count(numel[0]),
                     tensors[0], fmt::join(c.weight_decay_on, ", "));
}

// Returns the frozen parameters of the whole model, "" for none.
std::string frozen_value(const runtime::Engine& engine) {
  const int64_t frozen = engine.model().frozen_params(), all = engine.params();
  if (frozen == 0) return "";
  const std::vector<std::string>& patterns = engine.config().freeze;
  return fmt::format("{} parameters{}; {} of {} are trained", format_count(frozen),
                     patterns.empty() ? "" : fmt::format(" (cleave.freeze: {})", fmt::join(patterns, ", ")),
                     format_count(all - frozen), format_count(all));
}

// Returns notes of the engine, and keys without effect on this device.
std::vector<std::string> remarks(const runtime::Engine& engine) {
  const config::DsConfig& c = engine.config();
  std::vector<std::string> out = engine.notes().lines();
  if (c.tf32 && !engine.device().is_cuda()) out.emplace_back("cleave.tf32: has no effect on a CPU rank");
  if (!c.tune_products && !engine.device().is_cuda())
    out.emplace_back("cleave.tune_products: has no effect on a CPU rank");
  if (!c.deterministic && !engine.device().is_cuda())
    out.emplace_back("cleave.deterministic: has no effect on a CPU rank: its sums have a fixed order");
  if (c.zero.stage >= 2 && c.gradient_accumulation_steps > 1 &&
      engine.mesh().data * engine.mesh().sequence > 1)
    out.push_back(
        fmt::format("ZeRO stage {} sums gradients after each of the {} micro-batches and sends {} times the "
                    "bytes of stage 1",
                    c.zero.stage, c.gradient_accumulation_steps, c.gradient_accumulation_steps));
  return out;
}

}  // namespace

std::vector<config::NamedValue> start_lines(const runtime::Engine& engine, const StartFacts& facts,
                                            const RunOptions& options, const EpochLength& epoch,
                                            const config::ReadResult& config) {
  std::vector<config::NamedValue> out{
      {"model", fmt::format("{}, {} parameters", engine.model().name, format_count(engine.params()))}};
  const auto add = [&](const char* name, std::string value) {
    if (!value.empty()) out.push_back({name, std::move(value)});
  };
  add("weights", facts.weights);
  if (options.quiet) return out;
  add("frozen", frozen_value(engine));
  add("ranks", ranks_value(engine, facts));
  add("cores", facts.place.empty() || engine.mesh().size() == 1 ? facts.place : facts.place + " (rank 0)");
  add("layout", layout_value(engine));
  add("precision", precision_value(engine.config()));
  add("batch", config::batch_value(engine.config()));
  for (config::NamedValue& line : config::update_lines(config)) out.push_back(std::move(line));
  if (engine.config().optimizer.weight_decay > 0) add("decay", decay_value(engine));
  add("data", epoch_value(options, epoch));
  if (options.verbose)
    for (const config::Note& n : config.notes)
      add("config", fmt::format("{} = {} ({}): {}", n.path, n.value, n.origin, n.meaning));
  else
    add("config", config::differences(config));
  add("memory", memory_value(engine, options.verbose));
  add("output", output_value(options));
  for (const std::string& remark : remarks(engine)) {
    std::istringstream lines(remark);
    for (std::string one; std::getline(lines, one);) add("", one);
  }
  constexpr size_t kMost = 17;
  if (options.verbose || out.size() <= kMost) return out;
  const size_t hidden = out.size() - kMost + 1;
  out.resize(kMost - 1);
  add("", fmt::format("{} more lines with --verbose", hidden));
  return out;
}

}  // namespace cleave::app
