#include "app/run/train_paths.h"

#include <fmt/core.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "core/units.h"
#include "data/data_sources.h"
#include "data/indexed_file.h"
#include "device/trace.h"
#include "monitor/csv_monitor.h"
#include "monitor/metrics.h"
#include "optim/optimizer.h"

namespace cleave::app {
namespace fs = std::filesystem;

OutputPaths paths_of(const RunOptions& o, const config::DsConfig& config, int world) {
  OutputPaths p;
  p.input("--deepspeed_config", o.config);
  const auto tokens = [&](const char* option, const std::string& path) {
    if (!data::is_indexed(path)) return p.input(option, path);
    const data::IndexedNames names = data::indexed_names(path);
    for (const std::string& file : {names.bin, names.idx, names.mask}) p.input(option, file);
  };
  for (const std::string& path : data::files_of_data(o.data)) tokens("--data", path);
  for (const EvalSet& set : o.eval_sets)
    for (const std::string& path : data::files_of_data(set.data, "--eval_data")) tokens("--eval_data", path);
  for (const auto& [made, text] : o.texts)
    if (std::filesystem::is_regular_file(text)) p.input("the text", text);
  if (o.tokenizer && o.tokenizer->path() != "byte") p.input("--tokenizer", o.tokenizer->path());
  p.input("cleave.product_choices", config.product_choices);
  p.input("--model", config_file_of_model(o.model.model));
  if (!o.trace.empty())
    for (int rank = 0; rank < world; ++rank) p.file("--trace", Trace::file_of(o.trace, rank, world));
  p.file("--metrics", o.metrics);
  p.folder("--output", o.output, {"latest", "best", "run.lock"});
  p.folder("--export", o.export_to);
  if (config.flops_profiler.enabled) p.file("flops_profiler.output_file", config.flops_profiler.output_file);
  if (!config.csv_monitor.enabled) return p;
  const monitor::CsvMonitor tables(config.csv_monitor.output_path, config.csv_monitor.job_name);
  std::vector<monitor::Scalar> drawn = monitor::scalars_of(monitor::StepMetrics{});
  for (const EvalSet& set : o.eval_sets)
    for (const monitor::Scalar& s :
         monitor::scalars_of(monitor::EvaluationMetrics{.data = set.name, .accuracy = 0}))
      drawn.push_back(s);
  for (const monitor::Scalar& s : drawn) p.file("csv_monitor", tables.path_of(s.tag));
  return p;
}

std::string warning_of_little_space(const RunOptions& o, const config::DsConfig& config, int64_t params) {
  if (o.output.empty()) return {};
  const int64_t kinds = 1 + int64_t(optim::make_optimizer(config.optimizer)->states().size());
  const int64_t wanted = params * kinds * int64_t(sizeof(float));
  const KeepRule rule = keep_rule(o, config);
  // Existing checkpoints of this folder already have their space.
  const auto there = int64_t(checkpoint::checkpoint_folders(o.output).size());
  const int64_t most = most_checkpoints(o.steps, o.save_interval, rule) + int64_t(o.keep_best),
                more = std::max<int64_t>(1, most - there);
  std::error_code unknown;
  const fs::space_info space = fs::space(o.output, unknown);
  if (unknown || space.available >= uintmax_t(more * wanted)) return {};
  return fmt::format(
      "--output: too little space (a checkpoint takes {}, up to {} are in {} at a time, {} are free); this "
      "is enough for {} checkpoints; free some space, or reduce --keep, --keep_every or --keep_best",
      format_bytes(wanted), std::max(most, there), o.output, format_bytes(int64_t(space.available)),
      int64_t(space.available) / wanted);
}

}  // namespace cleave::app
