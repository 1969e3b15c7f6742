// What a configuration says to a step and to the state behind it, as the values that their parts take. What
// they do differently for another configuration is decided here, by a function of its arguments, before
// anything is allocated. They never see the configuration itself.
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

// Where the average over micro-batches and ranks is taken: `before` scales every loss, `after` the reduced
// gradient.
struct Averaging {
  double before = 1, after = 1;
  bool operator==(const Averaging&) const = default;
};

// How the ranks of the data axis share the state of a unit.
enum class ShardingKind : uint8_t {
  by_stage,  // over all of them, as sharding_of_stage says
  hybrid,    // over near ones, with replicas
  nested,    // over all; parameters over near ones
};

struct Settings {
  MeshShape mesh;
  MeshPlace place;  // of this rank
  Device device;
  std::optional<void*> cuda_stream;  // EngineOptions::cuda_stream
  bool trains = true;
  bool dry = false;
  int64_t texts = 0;  // that grow on this rank

  // What a step is made of.
  DType dtype = DType::fp32;  // of parameters and activations
  int64_t micros = 1;         // micro-batches of a rank: gradient_accumulation_steps
  config::LossAverage loss_average = config::LossAverage::targets;
  Averaging average;
  bool norm_first = false;   // the update must know the norm of all gradients: to clip, or to skip the step
  double clipping = 0;       // the norm that gradients are scaled down to; 0: they are not
  bool scales_loss = false;  // fp16: an overflow skips the step and changes the loss scale
  bool skips_overflows =
      false;  // bf16: one skips the step where the loss is finite; otherwise it ends the run
  bool update_runs_on = false;  // on a GPU, while the host prepares the next step; else the host waits for it
  config::OptimizerConfig optimizer;
  std::optional<optim::OutsideUpdate> outside;  // in its place
  optim::LrSchedule schedule;
  model::LogitsChunk logits;

  // What streams may do.
  bool tf32 = false, any_order = false, measures_products = false;  // Stream::allow_tf32 and what follows it
  bool comm_overlaps = false;         // collectives run on a stream of their own
  bool rows_overlap = false;          // the tensor axis' movements run beside products
  bool cuts_rows = false;             // outside of its products the tensor axis cuts rows
  int64_t piece_rows = 0;             // of which so many move at a time
  std::optional<Graphs::Use> graphs;  // whether, and when, passes are CUDA graphs
  std::string graphs_note;            // for people; empty where nobody would ask

  // Where things live, and who has which share.
  int stage = 0;  // of ZeRO
  ShardingKind sharding = ShardingKind::by_stage;
  int near_ranks = 0;                // that gather parameters among themselves; 0: no such groups
  offload::ShardHome shard_home;     // of shards. Gradients that are sharded live with the optimizer's state,
                                     // which is what reads them; in host memory where that is on disk
  offload::Placement state_home;     // of masters and optimizer state
  offload::DiskHome parameter_disk;  // of shards whose home is the disk
  offload::DiskOptions disk;
  int64_t whole_below = 0;  // units of fewer elements stay whole on the device
  int64_t left_in_memory =
      0;  // elements of a rank's shards that stay in host memory though their home is the disk
  bool measures_update = false;   // on which side offloaded state is updated is decided by a measurement
  bool saves_behind = false;      // checkpoints are copied to memory and written while the training goes on
  int64_t moved_granularity = 1;  // bytes: MovedMemory
  zero::StoreOptions store;       // but for what depends on the units: store_options
};

// The mesh of a job of `world` ranks. Error(usage) with the numbers that work when they do not divide.
MeshShape mesh_shape(const config::DsConfig& config, int world);

std::unique_ptr<optim::Optimizer> make_optimizer(const Settings& settings);

// The settings of one rank of a job of mesh.size(). Error(usage) when groups of near ranks do not divide the
// data axis.
Settings make_settings(const config::DsConfig& config, const MeshShape& mesh, int rank,
                       const EngineOptions& options);

// What the rank's store is asked to do for these units. Error(usage) where a pattern of weight_decay_on fits
// none of them.
zero::StoreOptions store_options(const Settings& settings, const RankUnits& units);

// The same layout, type and homes of weights, without what only training has: gradients and their sums,
// optimizer state and its homes, accumulation, recomputation. ZeRO stages below 3 differ in nothing else, so
// they become 0, and nested shards lie among near ranks as hybrid ones do.
config::DsConfig inference_config(config::DsConfig config);

}  // namespace cleave::runtime
