// What a configuration says to the engine, as the values that its parts take. Whatever the engine does
// differently for another configuration is decided here, by a function of its arguments, before anything is
// allocated; behind it nobody reads the configuration to choose.
#pragma once
#include <optional>

#include "config/ds_config.h"
#include "core/mesh_shape.h"
#include "device/graphs.h"
#include "model/layer.h"
#include "offload/placement.h"
#include "optim/schedule.h"
#include "runtime/engine.h"
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
  config::DsConfig config;  // of inference: without what only training has
  MeshShape mesh;
  MeshPlace place;  // of this rank
  Device device;
  bool trains = true;
  bool dry = false;
  int64_t texts = 0;  // that grow on this rank

  // Of a step.
  DType dtype = DType::fp32;  // of parameters and activations
  config::LossAverage loss_average = config::LossAverage::targets;
  Averaging average;
  bool norm_first = false;  // the update must know the norm of all gradients: to clip, or to skip the step
  bool update_runs_on = false;  // on a GPU, while the host prepares the next step; else the host waits for it
  optim::LrSchedule schedule;
  model::LogitsChunk logits;

  // Of streams.
  bool comm_overlaps = false;         // collectives run on a stream of their own
  bool rows_overlap = false;          // the tensor axis' movements run beside products
  std::optional<Graphs::Use> graphs;  // whether, and when, passes are CUDA graphs
  std::string graphs_note;            // for people; empty where nobody would ask

  // Of homes and shares.
  ShardingKind sharding = ShardingKind::by_stage;
  int near_ranks = 0;             // that gather parameters among themselves; 0: no such groups
  offload::ShardHome shard_home;  // of shards. Gradients that are sharded live with the optimizer's state,
                                  // which is what reads them; in host memory where that is on disk
  offload::Placement state_home;     // of masters and optimizer state
  offload::DiskHome parameter_disk;  // of shards whose home is the disk
  offload::DiskOptions disk;
};

// Of the rank of a job of mesh.size(). Error(usage) when groups of near ranks do not divide the data axis.
Settings make_settings(const config::DsConfig& config, const MeshShape& mesh, int rank,
                       const EngineOptions& options);

// What the rank's store is asked to do for this model.
zero::StoreOptions store_options(const Settings& settings, const model::Model& model);

// The same layout, type and homes of weights, without what only training has: gradients and their sums,
// optimizer state and its homes, accumulation, recomputation. ZeRO stages below 3 differ in nothing else, so
// they become 0, and nested shards lie among near ranks as hybrid ones do.
config::DsConfig inference_config(config::DsConfig config);

}  // namespace cleave::runtime
