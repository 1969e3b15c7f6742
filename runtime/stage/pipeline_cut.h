// Who holds what of a model when it is cut into a pipeline, and in which order it works: a value, computed
// alike on every rank before anything is allocated.
#pragma once
#include "comm/mesh.h"
#include "config_schema/ds_config.h"
#include "pipeline/partition.h"
#include "runtime/stage/stage.h"

namespace cleave::runtime {

struct PipelineCut {
  pipeline::Schedule schedule, evaluation;  // evaluation: of at most evaluation.shape.micros micro-batches
  std::vector<Range> pieces;                // layers of each
  std::vector<StageShape> stages;           // by rank of the pipe
  std::vector<std::string> units;           // of the whole model, in the order of their first use
  std::vector<std::vector<int>> holders;    // of each unit: ranks of the pipe, ascending
  std::vector<pipeline::LayerCost> layers;  // of the whole model, for one micro-batch; the head is the last
  std::vector<double> work;                 // of each piece, relative
  std::vector<double> splits;               // of each piece: SimulateOptions::splits
  double idle_share = 0;                    // of the ranks' time in a step, expected
  std::string line;                         // for people; empty with one stage

  int index_of(const std::string& unit) const;
};

// Of a training, as the configuration says. Error(usage) for a shape that the schedule does not have.
pipeline::Schedule schedule_of(const config::PipelineConfig& config, const pipeline::ScheduleShape& shape);

// `model` has whole layers. Error(usage) when it cannot be cut as the configuration says, or the schedule
// does not run. trains false: stages have what forwards need.
PipelineCut cut_pipeline(const config::DsConfig& config, const model::Model& model, bool trains = true);

}  // namespace cleave::runtime
