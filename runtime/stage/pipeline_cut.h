// Assignment of a model's layers and units to the ranks of a pipeline, and their schedule: a value that every
// rank computes identically before allocation.
#pragma once
#include "comm/mesh.h"
#include "config_schema/ds_config.h"
#include "pipeline/partition.h"
#include "runtime/stage/stage.h"

namespace cleave::runtime {

struct PipelineCut {
  pipeline::Schedule schedule, evaluation;  // evaluation: for up to evaluation.shape.micros micro-batches
  std::vector<Range> pieces;                // layers of each piece
  std::vector<StageShape> stages;           // by rank of the pipe
  std::vector<std::string> units;           // of the whole model, in order of first use
  std::vector<std::vector<int>> holders;    // of each unit: ranks of the pipe, ascending
  std::vector<pipeline::LayerCost> layers;  // of the whole model, for one micro-batch; the head is last
  std::vector<double> work;                 // relative work of each piece
  std::vector<double> splits;               // by piece: SimulateOptions::splits
  double idle_share = 0;                    // expected share of the ranks' time in a step
  std::string line;                         // description for users; empty with one stage

  int index_of(const std::string& unit) const;
};

// Returns the configured training schedule. Throws Error(usage) for a shape that the schedule does not
// support.
pipeline::Schedule schedule_of(const config::PipelineConfig& config, const pipeline::ScheduleShape& shape);

// Cuts a model with whole layers. Throws Error(usage) if it cannot be cut as configured, or if the schedule
// does not run. trains = false: stages have only the state for forwards.
PipelineCut cut_pipeline(const config::DsConfig& config, const model::Model& model, bool trains = true);

}  // namespace cleave::runtime
