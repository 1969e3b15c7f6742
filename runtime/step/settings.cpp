#include "runtime/step/settings.h"

#include <algorithm>

#include "core/environment.h"

namespace cleave::runtime {
namespace {

DType dtype_of(config::Precision p) {
  switch (p) {
    case config::Precision::fp32:
      return DType::fp32;
    case config::Precision::fp16:
      return DType::fp16;
    case config::Precision::bf16:
      return DType::bf16;
  }
  return DType::fp32;
}

MemoryKind host_memory(bool pinned) { return pinned ? MemoryKind::pinned : MemoryKind::host; }

Averaging averaging(const config::DsConfig& c, int ranks) {
  const double accumulation = double(c.gradient_accumulation_steps);
  if (c.gradient_sum) return {1 / accumulation, 1};
  if (c.exact_sums) return {1 / (accumulation * ranks), 1};  // depends only on the number of micro-batches
  if (!c.prescale_gradients && c.gradient_predivide_factor != 1)
    return {1 / (accumulation * c.gradient_predivide_factor), c.gradient_predivide_factor / ranks};
  return {1 / (accumulation * ranks), 1};
}

bool scales_loss(const config::DsConfig& c, const EngineOptions& o) {
  return c.precision == config::Precision::fp16 || o.scales_loss;
}

bool writes_overflows(const config::DsConfig& c) {
  return c.precision == config::Precision::bf16 && !c.check_grad_overflow && !c.exact_sums &&
         c.non_finite == config::NonFinite::stop;
}

int64_t most_missed(const config::DsConfig& c) {
  return c.non_finite != config::NonFinite::stop &&
                 (c.precision != config::Precision::fp16 || c.loss_spike > 0)
             ? c.non_finite_limit
             : 0;
}

bool keeps_copies(const config::DsConfig& c, const EngineOptions& o) {
  return c.copies_in_memory && !o.inference && (o.copies || o.dry);
}

// Returns true for clipping and for every feature that may skip a step.
bool needs_norm_first(const config::DsConfig& c, const EngineOptions& o) {
  return c.gradient_clipping > 0 || scales_loss(c, o) || c.exact_sums || o.updates_last || o.rates_given ||
         keeps_copies(c, o) || most_missed(c) > 0 || c.loss_spike > 0 ||
         (c.precision == config::Precision::bf16 && c.check_grad_overflow);
}

// A GPU takes enough rows to keep products from waiting for the head's weights and their gradient, which are
// read and written once per chunk, and saves the memory of fp32 logits. CPU products are so much slower that
// chunks cost nothing, and small chunks stay in the caches.
model::LogitsChunk logits_chunk(const config::DsConfig& c, Device device) {
  const bool gpu = device.is_cuda();
  model::LogitsChunk logits;
  if (c.logits_dtype == config::LogitsType::model || (c.logits_dtype == config::LogitsType::automatic && gpu))
    logits.type = dtype_of(c.precision);
  // 512 tiles of 128 x 256: four rounds of 132 multiprocessors.
  if (gpu) logits.rows = 4096, logits.bytes = int64_t{2} << 30, logits.input = int64_t{16} << 20;
  if (c.logits_rows > 0) logits = {c.logits_rows, model::LogitsChunk{}.rows, logits.type};
  return logits;
}

offload::DiskOptions disk_options(const config::AioConfig& c) {
  return {
      .block_bytes = c.block_size, .queue_depth = int(c.queue_depth), .threads = int(c.intra_op_parallelism)};
}

offload::ShardHome shard_home(const config::ZeroConfig& c) {
  offload::ShardHome home;
  if (c.stage == 3 && c.offload_param.device != config::OffloadDevice::none)
    home.parameters = c.offload_param.device == config::OffloadDevice::nvme
                          ? MemoryKind::disk
                          : host_memory(c.offload_param.pin_memory);
  if (c.stage >= 2 && c.offload_optimizer.device != config::OffloadDevice::none &&
      c.offload_optimizer.ratio == 1)
    home.gradients = host_memory(c.offload_optimizer.pin_memory);
  return home;
}

// Error messages name the rank.
offload::Placement state_home(const config::DsConfig& c, int rank) {
  const config::OffloadConfig& o = c.zero.offload_optimizer;
  if (o.device == config::OffloadDevice::none) return {};
  const MemoryKind memory = host_memory(o.pin_memory);
  const offload::UpdateSide update = c.offload_update == config::OffloadUpdate::device
                                         ? offload::UpdateSide::device
                                         : offload::UpdateSide::host;
  if (o.device == config::OffloadDevice::cpu)
    return {.optimizer = memory, .ratio = o.ratio, .update = update, .disk = {}};
  offload::DiskHome disk{.folder = o.nvme_path,
                         .name = fmt::format("the optimizer state of rank {}", rank),
                         .key = "zero_optimization.offload_optimizer.nvme_path",
                         .staging = memory,
                         .buffers = int(o.buffer_count),
                         .tile_numel = std::min(offload::DiskHome{}.tile_numel, c.zero.sub_group_size),
                         .options = disk_options(c.aio)};
  return {.optimizer = MemoryKind::disk, .ratio = o.ratio, .update = update, .disk = disk};
}

offload::DiskHome parameter_disk(const config::DsConfig& c, int rank) {
  const config::OffloadParamConfig& o = c.zero.offload_param;
  return {.folder = o.nvme_path,
          .name = fmt::format("the parameters of rank {}", rank),
          .key = "zero_optimization.offload_param.nvme_path",
          .staging = host_memory(o.pin_memory),
          .buffers = int(o.buffer_count),
          .tile_numel = offload::DiskHome{}.tile_numel,
          .options = disk_options(c.aio)};
}

// Returns the reason why this rank's passes cannot be CUDA graphs; empty if they can.
std::string no_graphs(const Settings& s, const config::DsConfig& c, bool traced) {
  if (c.cuda_graphs == config::Switch::off) return "cleave.cuda_graphs is off";
  if (!s.device.is_cuda()) return "this rank computes on the CPU";
  // NCCL state for a captured call does not outlive the capture, and host transports wait.
  if (s.mesh.size() > 1) return "the ranks talk to each other within a pass";
  if (!s.update_runs_on) return "state or parameters are offloaded";
  if (c.checkpointing.to_host) return "inputs of layers are kept in host memory";
  if (traced) return "its steps are traced or timed";
  // PyTorch uses the default stream by default.
  if (s.cuda_stream && !*s.cuda_stream) return "CUDA cannot capture work on its default stream";
  return "";
}

void choose_graphs(Settings& s, const config::DsConfig& c, bool traced) {
  if (!s.trains) return;
  const bool asked = c.cuda_graphs == config::Switch::on;
  const std::string why = no_graphs(s, c, traced);
  if (why.empty() && !s.dry) s.graphs = asked ? Graphs::Use::always : Graphs::Use::measured;
  if (asked && !why.empty())
    s.graphs_note = "CUDA graphs: not used: " + why;
  else if (s.graphs)
    s.graphs_note =
        asked ? "CUDA graphs: one per pass" : "CUDA graphs: one per pass, if faster in the first steps";
}

zero::StoreOptions store_of(const Settings& s, const config::DsConfig& c) {
  const config::Precision gradients = c.grad_accum_dtype.value_or(c.precision);
  zero::StoreOptions store{.weights = s.dtype,
                           .gradients = dtype_of(gradients),
                           .wire = dtype_of(c.communication_data_type.value_or(gradients)),
                           .reduce_numel = std::max<int64_t>(1, c.zero.reduce_bucket_size),
                           .gather_numel = std::max<int64_t>(1, c.zero.allgather_bucket_size),
                           .gathers_int8 = c.zero.quantized_weights,
                           .prefetch_visits = c.zero.stage3_prefetch_bucket_size > 0 ? 1 : 0,
                           .prefetch_numel = c.zero.stage3_prefetch_bucket_size,
                           .live_numel = c.zero.stage3_max_live_parameters,
                           .overlap = s.comm_overlaps,
                           .trains = s.trains,
                           .decays = config::DecayRule(c.weight_decay_on),
                           .behind = axes_behind(s.place).without({Axis::pipe}),
                           .disk = s.parameter_disk};
  if (c.exact_sums) store.gradients = store.wire = DType::int64, store.grid = c.exact_sums_grid;
  return store;
}

// Registered NCCL buffers need multiples of CUDA's recommended size, 2 MiB on every GPU so far. The value
// depends on neither the device nor the transport, so that a plan made elsewhere has the bytes of the
// training.
int64_t moved_granularity(const MeshShape& mesh, Device device) {
  const bool registers =
      device.is_cuda() && mesh.sharers() > 1 && environment_value("CLEAVE_NCCL_REGISTER") == "on";
  return registers ? int64_t{2} << 20 : 1;
}

}  // namespace

DType model_dtype(const config::DsConfig& config) { return dtype_of(config.precision); }

MeshShape mesh_shape(const config::DsConfig& config, int world) {
  const int pipe = config.pipeline.stages, tensor = config.tensor_parallel.size(),
            sequence = config.sequence_ranks();
  const MeshCut cut = cut_world(world, pipe, tensor, sequence);
  auto refuse = [&](const char* key, int size, const char* of) {
    fail(Exit::usage, "{} is {}, which does not divide the {} ranks of {}; use {}", key, size, cut.ranks, of,
         divisors(cut.ranks));
  };
  if (cut.refused == Axis::pipe) refuse("pipeline.stages", pipe, "this job");
  if (cut.refused == Axis::tensor)
    refuse("tensor_parallel.autotp_size", tensor, pipe > 1 ? "a pipeline stage" : "this job");
  if (cut.refused == Axis::sequence)
    refuse("sequence_parallel_size", sequence,
           pipe * tensor > 1 ? "a place on the pipe and tensor axes" : "this job");
  return {.pipe = pipe, .data = int(cut.data), .sequence = sequence, .tensor = tensor};
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Settings& settings) {
  return settings.outside ? optim::outside_optimizer(*settings.outside)
                          : optim::make_optimizer(settings.optimizer);
}

Settings make_settings(const config::DsConfig& config, const MeshShape& mesh, int rank,
                       const EngineOptions& options) {
  CHECK(options.texts == 0 || options.inference, "EngineOptions::texts is for inference");
  CHECK(!options.cuda_stream || options.device.is_cuda(), "EngineOptions::cuda_stream is of a CUDA rank");
  const config::DsConfig c = options.inference ? inference_config(config) : config;
  const bool gpu = options.device.is_cuda(),
             offloads = c.zero.offload_optimizer.device != config::OffloadDevice::none;
  Settings s{.mesh = mesh,
             .place = mesh.place(rank),
             .device = options.device,
             .cuda_stream = options.cuda_stream,
             .trains = !options.inference,
             .dry = options.dry,
             .texts = options.texts,
             .dtype = dtype_of(c.precision),
             .micros = c.gradient_accumulation_steps,
             .loss_average = c.loss_average,
             .average = averaging(c, mesh.data),
             .norm_first = needs_norm_first(c, options),
             .clipping = c.gradient_clipping,
             .scales_loss = scales_loss(c, options),
             .skips_overflows = c.precision == config::Precision::bf16 && c.check_grad_overflow,
             .most_missed = most_missed(c),
             .rolls_back = c.non_finite == config::NonFinite::roll_back,
             .spike = {c.loss_spike, c.loss_spike_steps},
             .writes_overflows = writes_overflows(c),
             .update_runs_on = gpu && !offloads && c.zero.offload_param.device == config::OffloadDevice::none,
             .optimizer = c.optimizer,
             .outside = {},
             .schedule = optim::LrSchedule(c.scheduler, c.optimizer.lr),
             .logits = logits_chunk(c, options.device),
             .tf32 = c.tf32,
             .any_order = !c.deterministic,
             .measures_products = c.tune_products && !c.exact_sums,
             .comm_overlaps = c.zero.overlap_comm,
             // With other ranks, the all-gathers that follow would need the order of one stream.
             .homes_overlap = c.zero.overlap_comm && mesh.sharers() == 1 &&
                              c.zero.offload_param.device == config::OffloadDevice::cpu,
             .rows_overlap = mesh.tensor > 1 && c.tensor_parallel.tp_overlap_comm.value_or(gpu),
             .cuts_rows = c.tensor_parallel.sequence_parallel,
             .piece_rows = c.tensor_parallel.piece_rows(),
             .graphs = {},
             .graphs_note = {},
             .stage = c.zero.stage,
             .sharding = c.zero.near_ranks() == 0     ? ShardingKind::by_stage
                         : c.zero.mics_shard_size > 0 ? ShardingKind::hybrid
                                                      : ShardingKind::nested,
             .near_ranks = c.zero.near_ranks(),
             .shard_home = shard_home(c.zero),
             .state_home = state_home(c, rank),
             .parameter_disk = parameter_disk(c, rank),
             .disk = disk_options(c.aio),
             .whole_below = c.zero.stage3_param_persistence_threshold,
             .left_in_memory = c.zero.offload_param.max_in_cpu,
             .measures_update =
                 gpu && offloads && c.offload_update == config::OffloadUpdate::automatic && !options.dry,
             .keeps_copies = keeps_copies(c, options),
             .saves_behind = c.checkpoint.behind(),
             .moved_granularity = moved_granularity(mesh, options.device),
             .store = {}};
  const int data = mesh.sharers();
  require(s.near_ranks == 0 || data % s.near_ranks == 0, Exit::usage,
          "mics_shard_size, zero_hpz_partition_size: groups of {} near ranks do not divide the {} "
          "data-parallel ranks",
          s.near_ranks, data);
  s.store = store_of(s, c);
  choose_graphs(s, c, options.trace != nullptr);
  return s;
}

zero::StoreOptions store_options(const Settings& s, const RankUnits& units) {
  zero::StoreOptions options = s.store;
  const std::vector<std::string> idle = options.decays.idle_patterns(units.all);
  require(idle.empty(), Exit::usage,
          "cleave.weight_decay_on: no parameter of {} matches \"{}\"; use matrices, all, or name patterns "
          "such as *.weight (cleave inspect lists the names of a checkpoint)",
          units.model, idle.empty() ? "" : idle.front());
  // A gradient gets one contribution per micro-batch on each rank and use of its unit.
  if (options.exact())
    options.limit = 0x1p62 / (double(s.micros) * s.mesh.sharers() * s.mesh.tensor * units.most_uses);
  return options;
}

config::DsConfig inference_config(config::DsConfig c) {
  config::ZeroConfig& zero = c.zero;
  if (zero.stage < 3) zero.stage = 0;
  if (zero.mics_shard_size <= 0 && zero.zero_hpz_partition_size > 1)
    zero.mics_shard_size = zero.zero_hpz_partition_size;
  zero.zero_hpz_partition_size = 1;
  zero.offload_optimizer = {};
  c.gradient_accumulation_steps = 1;
  c.grad_accum_dtype.reset(), c.communication_data_type.reset();
  c.exact_sums = false;
  c.checkpointing = {};
  // Keep chunks, because a list of layers may name them.
  c.pipeline.schedule = c.pipeline.virtual_stages > 1 ? "interleaved" : "1f1b";
  return c;
}

}  // namespace cleave::runtime
