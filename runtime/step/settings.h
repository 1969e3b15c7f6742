// Step settings derived from the ds_config, as values for the components of a step. All decisions that depend
// on the configuration are made here, by pure functions before allocation; the components never see the
// configuration.
#pragma once
#include <optional>

#include "config_schema/ds_config.h"
#include "core/mesh_shape.h"
#include "device/graphs.h"
#include "model/layer.h"
#include "offload/placement.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "runtime/step/engine_options.h"
#include "runtime/step/rank_units.h"
#include "zero/store_options.h"

namespace cleave::runtime {

// Factors of the average over micro-batches and ranks: `before` scales every loss, `after` the reduced
// gradient.
struct Averaging {
  double before = 1, after = 1;
  bool operator==(const Averaging&) const = default;
};

// A loss above factor times the median of the last `steps` losses is a spike; a factor of 0 is off.
struct LossSpike {
  double factor = 0;
  int64_t steps = 1;
};

// Sharding of a unit's state over the ranks of the data axis.
enum class ShardingKind : uint8_t {
  by_stage,  // over all ranks, as in sharding_of_stage
  hybrid,    // over near ranks, with replicas
  nested,    // over all ranks; parameters over near ranks
};

struct Settings {
  MeshShape mesh;
  MeshPlace place;  // of this rank
  Device device;
  std::optional<void*> cuda_stream;  // EngineOptions::cuda_stream
  bool trains = true;
  bool dry = false;
  int64_t texts = 0;  // texts with a KV cache on this rank

  // Contents of a step.
  DType dtype = DType::fp32;  // of parameters and activations
  int64_t micros = 1;         // micro-batches per rank: gradient_accumulation_steps
  config::LossAverage loss_average = config::LossAverage::targets;
  Averaging average;
  bool norm_first = false;   // the update needs the norm of all gradients first, to clip or to skip the step
  double clipping = 0;       // maximum gradient norm; 0: no clipping
  bool scales_loss = false;  // fp16: an overflow skips the step and changes the loss scale
  bool skips_overflows =
      false;  // bf16: an overflow skips the step if the loss is finite; otherwise it aborts the run
  int64_t most_missed = 0;  // bad steps in a row that are skipped, or rolled back, before an error
  bool rolls_back = false;  // the caller of the engine rolls back after a bad step
  LossSpike spike;
  bool writes_overflows = false;  // bf16: no check, values that are not finite go to the weights
  bool update_runs_on = false;    // on a GPU: the host does not wait for the update
  config::OptimizerConfig optimizer;
  std::optional<optim::OutsideUpdate> outside;  // replaces `optimizer`
  optim::LrSchedule schedule;
  model::LogitsChunk logits;

  // Stream properties. tf32 and the next two: see Stream::allow_tf32 and the functions after it.
  bool has_products = true;  // the passes run in the engine
  bool tf32 = false, any_order = false, measures_products = false;
  bool comm_overlaps = false;  // collectives have a separate stream
  bool homes_overlap = false;  // weights come from host memory on another one, while gradients go there
  bool rows_overlap = false;   // transfers of the tensor axis overlap products
  bool cuts_rows = false;      // the tensor axis cuts rows outside of its products
  int64_t piece_rows = 0;      // rows per transfer
  std::optional<Graphs::Use> graphs;  // condition for CUDA graphs; empty: never
  std::string graphs_note;            // reason for users; empty if not of interest

  // Homes and shares.
  int stage = 0;  // ZeRO stage
  ShardingKind sharding = ShardingKind::by_stage;
  int near_ranks = 0;                // ranks that gather parameters among themselves; 0: no such groups
  offload::ShardHome shard_home;     // home of shards. Sharded gradients live with the optimizer state that
                                     // reads them; in host memory if that is on disk
  offload::Placement state_home;     // of masters and optimizer state
  offload::DiskHome parameter_disk;  // for shards with disk home
  offload::DiskOptions disk;
  int64_t whole_below = 0;  // units with fewer elements stay whole on the device
  int64_t left_in_memory =
      0;  // elements of a rank's shards that stay in host memory although their home is the disk
  bool measures_update = false;   // a measurement decides the update side of offloaded state
  bool keeps_copies = false;      // of the state, for ranks that replace lost ones
  bool saves_behind = false;      // checkpoints are copied to memory and written in the background
  int64_t moved_granularity = 1;  // in bytes: MovedMemory
  zero::StoreOptions store;       // except unit-dependent options: store_options
};

// Returns the mesh of a job of `world` ranks. Throws Error(usage) with valid numbers if the ranks do not
// divide.
MeshShape mesh_shape(const config::DsConfig& config, int world);

std::unique_ptr<optim::Optimizer> make_optimizer(const Settings& settings);

// Returns the settings of one rank of a job with mesh.size() ranks. Throws Error(usage) if groups of near
// ranks do not divide the data axis.
Settings make_settings(const config::DsConfig& config, const MeshShape& mesh, int rank,
                       const EngineOptions& options);

// Returns the rank's store options for these units. Throws Error(usage) if a pattern of weight_decay_on
// matches no unit.
zero::StoreOptions store_options(const Settings& settings, const RankUnits& units);

// Returns the configuration with the same layout, type and homes of weights, but without training settings:
// gradients and their sums, optimizer state and its homes, accumulation, recomputation. ZeRO stages below 3
// become 0, because they do not differ in anything else, and nested shards become hybrid ones.
config::DsConfig inference_config(config::DsConfig config);

}  // namespace cleave::runtime
