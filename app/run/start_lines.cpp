#include "app/run/start_lines.h"

#include <fmt/ranges.h>

#include <sstream>

#include "app/run/epochs.h"
#include "config_schema/decay_rule.h"
#include "config_schema/summary.h"
#include "core/units.h"

namespace cleave::app {
namespace {

std::string model_line(const runtime::Engine& engine, const std::string& transport) {
  const config::DsConfig& c = engine.config();
  const MeshShape& mesh = engine.mesh();
  return fmt::format(
      "model: {}, {} parameters; {}, {}; batch {} = {} x {} accumulation x {} data-parallel ranks{}{}",
      engine.model().name, format_count(engine.params()), name_of(engine.device()), transport,
      c.train_batch_size, c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps, mesh.data,
      mesh.sequence > 1 ? fmt::format("; sequences cut over {} ranks", mesh.sequence) : "",
      mesh.tensor > 1 ? fmt::format("; layers cut over {} ranks", mesh.tensor) : "");
}

std::string memory_lines(const runtime::Engine& engine, bool whole) {
  const MemoryTable& planned = engine.memory_planned();
  std::string text =
      engine.mesh().pipe > 1 ? "memory of rank 0, as planned:" : "memory of a rank, as planned:";
  if (whole) {
    std::string table = format(planned);
    table.pop_back();
    return text + '\n' + table;
  }
  const char* separator = " ";
  for (int k = 0; k < kMemoryKinds; ++k)
    if (const int64_t bytes = planned.total(MemoryKind(k)); bytes > 0)
      text += fmt::format("{}{} {}", separator, name_of(MemoryKind(k)), format_bytes(bytes)),
          separator = ", ";
  return text;
}

// What the optimizer's weight decay is for, of the whole model.
std::string decay_line(const runtime::Engine& engine) {
  const config::DsConfig& c = engine.config();
  const config::DecayRule rule(c.weight_decay_on);
  int64_t numel[2] = {0, 0}, tensors[2] = {0, 0};  // without and with decay
  for (const UnitSpec& unit : engine.model().units())
    for (const ParamSpec& p : unit.params)
      if (!unit.frozen) numel[rule.applies_to(p)] += p.whole_numel(), ++tensors[rule.applies_to(p)];
  return fmt::format(
      "weight decay {}: on {} parameters in {} tensors, not on {} in {} (cleave.weight_decay_on: {})",
      c.optimizer.weight_decay, format_count(numel[1]), tensors[1], format_count(numel[0]), tensors[0],
      fmt::join(c.weight_decay_on, ", "));
}

// What the configuration or the model leaves untrained, of the whole model; "" for nothing.
std::string frozen_line(const runtime::Engine& engine) {
  const int64_t frozen = engine.model().frozen_params(), all = engine.params();
  if (frozen == 0) return "";
  const std::vector<std::string>& patterns = engine.config().freeze;
  return fmt::format("frozen: {} parameters{}; {} of {} are trained", format_count(frozen),
                     patterns.empty() ? "" : fmt::format(" (cleave.freeze: {})", fmt::join(patterns, ", ")),
                     format_count(all - frozen), format_count(all));
}

// One, two or three sentences about a run that has something to say of itself.
std::vector<std::string> remarks(const runtime::Engine& engine) {
  const config::DsConfig& c = engine.config();
  std::vector<std::string> out = engine.notes().lines();
  if (c.tf32 && !engine.device().is_cuda())
    out.emplace_back("cleave.tf32 changes nothing: this rank computes on the CPU");
  if (!c.tune_products && !engine.device().is_cuda())
    out.emplace_back("cleave.tune_products changes nothing: this rank computes on the CPU");
  if (!c.deterministic && !engine.device().is_cuda())
    out.emplace_back(
        "cleave.deterministic changes nothing: this rank computes on the CPU, where sums have an order");
  if (c.zero.stage >= 2 && c.gradient_accumulation_steps > 1 &&
      engine.mesh().data * engine.mesh().sequence > 1)
    out.push_back(fmt::format(
        "ZeRO stage {} sums gradients after each of the {} micro-batches: {} times the bytes of stage 1",
        c.zero.stage, c.gradient_accumulation_steps, c.gradient_accumulation_steps));
  return out;
}

}  // namespace

std::vector<std::string> start_lines(const runtime::Engine& engine, const std::string& transport,
                                     const std::string& threads, const RunOptions& options,
                                     const EpochLength& epoch, const config::ReadResult& config) {
  std::vector<std::string> out{model_line(engine, transport)};
  if (options.quiet) return out;
  out.push_back(fmt::format("threads: {} a rank", threads));
  out.push_back(epoch_line(options, epoch));
  for (std::string& about : config::update_lines(config)) out.push_back(std::move(about));
  if (std::string frozen = frozen_line(engine); !frozen.empty()) out.push_back(std::move(frozen));
  if (engine.config().optimizer.weight_decay > 0) out.push_back(decay_line(engine));
  if (options.verbose)
    for (const config::Note& n : config.notes)
      out.push_back(fmt::format("config: {} = {} ({}): {}", n.path, n.value, n.origin, n.meaning));
  else if (std::string differs = config::differences_line(config); !differs.empty())
    out.push_back(std::move(differs));
  out.push_back(memory_lines(engine, options.verbose));
  for (const std::string& remark : remarks(engine)) {
    std::istringstream lines(remark);
    for (std::string one; std::getline(lines, one);) out.push_back(one);
  }
  constexpr size_t kMost = 12;  // and the one before them, of the weights
  if (options.verbose || out.size() <= kMost) return out;
  const size_t hidden = out.size() - kMost + 1;
  out.resize(kMost - 1);
  out.push_back(fmt::format("and {} more lines, which --verbose shows", hidden));
  return out;
}

}  // namespace cleave::app
