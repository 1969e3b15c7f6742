// Resolves the number of ranks of each axis, and their shares.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "config_schema/batch_sizes.h"
#include "config_schema/elasticity.h"
#include "config_schema/nearest_key.h"
#include "config_schema/reading.h"
#include "core/mesh_shape.h"
#include "pipeline/schedule.h"

namespace cleave::config {
namespace {

constexpr const char* kBatchKeys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"};

// Divides the ranks of the job.
MeshCut cut_of(const Reading& r) {
  const DsConfig& c = r.result.config;
  return cut_world(r.options.world_size, c.pipeline.stages, c.tensor_parallel.size(), c.sequence_ranks());
}

constexpr const char* kAsk = "add --world_size N, the number of ranks of the job";

// Explains why the ranks of an axis do not divide the number of ranks.
std::string no_divisor(const Reading& r, int64_t size, std::string_view what, int64_t ranks,
                       std::string_view beside) {
  if (r.options.world_assumed)
    return fmt::format("{} {} need more ranks than the assumed single rank; {}", size, what, kAsk);
  return fmt::format("{} {} do not divide {} ranks{}; use {}", size, what, ranks, beside, divisors(ranks));
}

// Returns the data-parallel ranks that make the three sizes consistent; 0 if the sizes define none.
int64_t data_ranks_of(const BatchSizes& sizes) {
  if (!sizes.train || !sizes.micro || !sizes.accumulation) return 0;
  int64_t one = 0;
  if (__builtin_mul_overflow(*sizes.micro, *sizes.accumulation, &one)) return 0;
  return *sizes.train % one == 0 ? *sizes.train / one : 0;
}

// Returns the number of ranks that the sizes define, if the user gave none.
int64_t ranks_of_sizes(const Reading& r, const BatchSizes& sizes, int64_t share) {
  int64_t all = 0;
  return !r.options.world_assumed || __builtin_mul_overflow(data_ranks_of(sizes), share, &all) ? 0 : all;
}

// Returns the pipeline that a script may make, if it leaves the ranks that the sizes define.
std::string hint_of_stages(const BatchSizes& sizes, int64_t ranks) {
  const int64_t left = data_ranks_of(sizes);
  if (left == 0 || left >= ranks || ranks % left != 0) return "";
  return fmt::format(
      "; a pipeline of {} stages leaves {}: pipeline.stages, or num_stages of a PipelineModule", ranks / left,
      left);
}

// The batch sizes of the section "elasticity".
void resolve_elastic_batch(Reading& r) {
  DsConfig& c = r.result.config;
  const ElasticityConfig& rule = c.elasticity;
  const size_t before = r.result.problems.size();
  for (const char* path : {"elasticity.max_train_batch_size", "elasticity.micro_batch_sizes"})
    if (!r.entry(path))
      r.error_at("elasticity.enabled",
                 fmt::format("needs {}; set it, or set elasticity.enabled to false", path));
  for (const char* path : kBatchKeys)
    if (r.entry(path) && !rule.ignore_non_elastic_batch_info)
      r.error_at(path,
                 "conflicts with elasticity.enabled, which computes it; remove one of the two, or set "
                 "elasticity.ignore_non_elastic_batch_info to true");
  if (rule.version != 0.1 && rule.version != 0.2)
    r.error_at("elasticity.version", fmt::format("expected 0.1 or 0.2, got {}", rule.version));
  if (rule.min_gpus > rule.max_gpus)
    r.error_at("elasticity.min_gpus",
               fmt::format("{} is above elasticity.max_gpus, {}; swap them", rule.min_gpus, rule.max_gpus));
  const int64_t shared = int64_t{c.pipeline.stages} * c.tensor_parallel.size() * c.sequence_ranks();
  if (rule.version == 0.2 && rule.num_gpus_per_node % rule.model_parallel_size != 0)
    r.error_at("elasticity.model_parallel_size",
               fmt::format("{} does not divide elasticity.num_gpus_per_node {}", rule.model_parallel_size,
                           rule.num_gpus_per_node));
  if (rule.model_parallel_size != (rule.version == 0.1 ? 1 : shared))
    r.error_at(
        "elasticity.model_parallel_size",
        fmt::format("expected {}, got {}; {}", rule.version == 0.1 ? 1 : shared, rule.model_parallel_size,
                    rule.version == 0.1 ? "elasticity.version 0.2 supports more"
                                        : "it is the product of tensor, sequence and pipeline ranks"));
  const MeshCut cut = cut_of(r);
  if (r.result.problems.size() > before || cut.refused) return;
  const ElasticBatch batch = elastic_batch(rule, cut.data);
  if (!batch.error.empty())
    return r.error_at(
        "elasticity.max_train_batch_size",
        batch.error +
            (r.options.world_assumed && !batch.data_ranks.empty() ? fmt::format("; {}", kAsk) : ""));
  for (const char* path : kBatchKeys) r.derived[path] = "derived";
  c.train_batch_size = batch.train;
  c.train_micro_batch_size_per_gpu = batch.micro;
  c.gradient_accumulation_steps = batch.train / batch.micro / cut.data;
}

void resolve_batch(Reading& r) {
  DsConfig& c = r.result.config;
  for (const char* path : kBatchKeys)
    if (const Given* g = r.entry(path); g && !g->usable) return;
  if (c.elasticity.enabled && !r.options.micro_batch_size) return resolve_elastic_batch(r);
  const auto given = [](int64_t size) { return size > 0 ? std::optional(size) : std::nullopt; };
  BatchSizes sizes{given(c.train_batch_size), given(c.train_micro_batch_size_per_gpu),
                   given(c.gradient_accumulation_steps)};
  if (r.options.micro_batch_size) sizes = {std::nullopt, r.options.micro_batch_size, 1};
  const bool left_open = std::any_of(std::begin(kBatchKeys), std::end(kBatchKeys), [&](const char* path) {
    const Given* g = r.entry(path);
    return g && g->origin == "auto";
  });
  if (const AutoValues& a = r.options.auto_values; !sizes.train && !sizes.micro && left_open) {
    sizes.micro = a.micro_batch_size ? a.micro_batch_size : a.default_micro_batch_size;
    if (!sizes.accumulation) sizes.accumulation = a.gradient_accumulation_steps;
  }
  const int64_t stages = c.pipeline.stages, tensor = c.tensor_parallel.size(), sequence = c.sequence_ranks();
  const MeshCut cut = cut_of(r);
  if (cut.refused) return;  // reported at the key of the axis that does not divide
  std::string origin = r.options.world_origin;
  if (stages * tensor * sequence > 1 && origin.empty())
    origin = fmt::format("{} ranks", r.options.world_size);
  if (stages > 1) origin += fmt::format(" / {} pipeline stages", stages);
  if (tensor > 1) origin += fmt::format(" / {} tensor ranks", tensor);
  if (sequence > 1) origin += fmt::format(" / {} sequence ranks", sequence);
  const SolvedBatch solved = solve_batch(sizes, cut.data, origin);
  if (!solved.error.empty()) {
    const Given* at = nullptr;
    for (const char* path : kBatchKeys)
      if (!at) at = r.entry(path);
    std::string from_options;
    for (const char* path : kBatchKeys)
      if (const auto it = r.derived.find(path); it != r.derived.end())
        from_options += fmt::format("; {} comes from {}", path, it->second);
    const int64_t ranks = ranks_of_sizes(r, sizes, stages * tensor * sequence);
    return r.error(
        at ? at->where : TextPosition{}, at ? at->shown : "train_batch_size",
        ranks > 0
            ? fmt::format("the three batch sizes need {} ranks, but one is assumed; add --world_size {}",
                          ranks, ranks)
            : solved.error + (stages == 1 ? hint_of_stages(sizes, cut.data) : "") + from_options);
  }
  const char* how = "derived";
  if (!sizes.train) r.derived[kBatchKeys[0]] = how;
  if (!sizes.micro) r.derived[kBatchKeys[1]] = how;
  if (!sizes.accumulation) r.derived[kBatchKeys[2]] = how;
  c.train_batch_size = *solved.sizes.train;
  c.train_micro_batch_size_per_gpu = *solved.sizes.micro;
  c.gradient_accumulation_steps = *solved.sizes.accumulation;
}

void resolve_tensor(Reading& r) {
  const DsConfig& c = r.result.config;
  const TensorParallelConfig& t = c.tensor_parallel;
  if (t.autotp_size > 1 && t.tp_size > 1 && t.autotp_size != t.tp_size)
    r.error_at(
        "tensor_parallel.tp.tp_size",
        fmt::format(
            "{}, but tensor_parallel.autotp_size is {}; both name the tensor-parallel size, so remove one",
            t.tp_size, t.autotp_size));
  const MeshCut cut = cut_of(r);
  if (cut.refused != Axis::tensor) return;
  const char* key = t.autotp_size > 1 ? "tensor_parallel.autotp_size" : "tensor_parallel.tp.tp_size";
  r.error_at(key, no_divisor(r, t.size(), "tensor ranks", cut.ranks,
                             c.pipeline.stages > 1 ? " of a pipeline stage" : ""));
}

void resolve_sequence(Reading& r) {
  const DsConfig& c = r.result.config;
  const MeshCut cut = cut_of(r);
  if (cut.refused != Axis::sequence) return;
  const bool beside = c.pipeline.stages > 1 || c.tensor_parallel.size() > 1;
  r.error_at("sequence_parallel_size",
             no_divisor(r, c.sequence_ranks(), "sequence ranks", cut.ranks,
                        beside ? " in addition to the pipeline and tensor ranks" : ""));
}

void resolve_pipeline(Reading& r) {
  PipelineConfig& p = r.result.config.pipeline;
  if (p.stages == 0) p.stages = 1, r.derived["pipeline.stages"] = "derived";
  if (cut_of(r).refused == Axis::pipe)
    r.error_at("pipeline.stages", no_divisor(r, p.stages, "stages", r.options.world_size, ""));
  const bool file = p.schedule.ends_with(".json");
  const pipeline::ScheduleRow* row = pipeline::find_schedule(p.schedule);
  if (!file && !row) {
    const std::vector<std::string>& names = pipeline::schedule_names();
    const std::string near = nearest_word(p.schedule, names);
    r.error_at(
        "pipeline.schedule",
        fmt::format("unknown schedule {}; use {}, or the path of a .json file{}", quote(p.schedule),
                    fmt::join(names, ", "), near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
  }
  if (p.stages > 1 && p.virtual_stages > 1 && !file && !(row && row->chunks))
    r.error_at("pipeline.virtual_stages",
               fmt::format("{} chunks per rank need the schedule \"interleaved\"; {} has one",
                           p.virtual_stages, p.schedule));
  const std::string& method = p.partition_method;
  const bool listed = !method.empty() && method.find_first_not_of("0123456789,") == std::string::npos;
  if (!listed && method != "balanced" && method != "parameters" && method != "uniform" &&
      !method.starts_with("type:"))
    r.error_at("pipeline.partition_method",
               fmt::format("unknown method {}; use balanced, parameters, uniform, type:REGEX, or layers per "
                           "stage such as \"3,4,4,3\"",
                           quote(method)));
  if (p.stages == 1) p.virtual_stages = 1;
}

// Groups of near ranks must divide the data axis, which includes ranks that share a sequence.
void resolve_near_ranks(Reading& r) {
  DsConfig& c = r.result.config;
  const int64_t share = int64_t{c.pipeline.stages} * c.tensor_parallel.size();
  if (r.options.world_size % share != 0)
    return;  // reported at pipeline.stages or tensor_parallel.autotp_size
  const int64_t data = r.options.world_size / share;
  auto check = [&](const char* key, int64_t size) {
    if (size > 0 && data % size == 0) return;
    r.error_at(key, r.options.world_assumed && size > 0
                        ? no_divisor(r, size, "ranks that share a copy", data, "")
                        : fmt::format("{} ranks do not divide the data-parallel size {}; use {}", size, data,
                                      divisors(data)));
  };
  ZeroConfig& z = c.zero;
  if (z.stage != 3) return;
  if (z.zero_hpz_partition_size > data) {
    r.warning_at("zero_optimization.zero_hpz_partition_size",
                 fmt::format("{} exceeds the data-parallel size {}, which is used instead{}",
                             z.zero_hpz_partition_size, data,
                             r.options.world_assumed ? fmt::format("; {}", kAsk) : ""));
    z.zero_hpz_partition_size = data;
  }
  if (z.mics_shard_size != -1) check("zero_optimization.mics_shard_size", z.mics_shard_size);
  if (z.zero_hpz_partition_size != 1)
    check("zero_optimization.zero_hpz_partition_size", z.zero_hpz_partition_size);
  if (z.mics_shard_size > 0 && z.zero_hpz_partition_size > 1)
    r.error_at("zero_optimization.zero_hpz_partition_size",
               "and mics_shard_size both limit gathers to near ranks; remove one");
}

// Quantization blocks are cut from a rank's shard, regardless of parameter boundaries.
void check_quantized_gathers(Reading& r) {
  const DsConfig& c = r.result.config;
  if (c.zero.stage != 3 || !c.zero.quantized_weights) return;
  const char* key = "zero_optimization.zero_quantized_weights";
  if (c.tensor_parallel.size() > 1)
    r.error_at(key,
               "cannot be combined with tensor parallelism: its ranks would round their copies of a "
               "parameter differently; remove it, or tensor_parallel");
  if (c.exact_sums)
    r.error_at(key,
               "rounds weights in blocks that depend on the number of ranks, but cleave.exact_sums requires "
               "the same bits for any number; remove one");
}

void check_ranks(Reading& r) {
  const JsonValue* v = r.value("data_parallel_size");
  const DsConfig& c = r.result.config;
  const int64_t share = int64_t{c.pipeline.stages} * c.tensor_parallel.size() * c.sequence_ranks(),
                ranks = r.options.world_size / share;
  if (v && v->integer && *v->integer != ranks && !r.options.micro_batch_size)
    r.error_at("data_parallel_size",
               r.options.world_assumed
                   ? fmt::format("one rank is assumed; add --world_size {}", *v->integer * share)
                   : fmt::format("the data-parallel size is {}; remove the key or start {}", ranks,
                                 *v->integer * share));
}

}  // namespace

void resolve_axes(Reading& reading) {
  resolve_pipeline(reading);
  resolve_tensor(reading);
  resolve_sequence(reading);
  resolve_batch(reading);
  resolve_near_ranks(reading);
  check_quantized_gathers(reading);
  check_ranks(reading);
}

}  // namespace cleave::config
