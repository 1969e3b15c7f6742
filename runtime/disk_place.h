// Offload as the configuration asks for it, as values.
#pragma once
#include "config_schema/ds_config.h"
#include "offload/placement.h"
#include "zero/flat_layout.h"
#include "zero/plan.h"

namespace cleave {

// Of a rank's training state; the rank appears in messages.
Placement placement(const DsConfig& config, int rank);

// Of its shards. Where gradients are sharded they live with the optimizer's state, which is what reads them;
// in host memory where that is on disk.
ShardHome shard_home(const DsConfig& config);
DiskPlace parameter_place(const DsConfig& config, int rank);  // of shards whose home is the disk

// Up to offload_param.max_in_cpu elements of a rank's shards stay in host memory, though their home is the
// disk: those of the first units that are asked for.
class KeptInMemory {
 public:
  explicit KeptInMemory(const OffloadParamConfig& config);
  ShardHome home_of(const UnitSpec& unit, const ZeroPlan& plan);

 private:
  int64_t left_;
  MemoryKind kind_;
};

}  // namespace cleave
