// Selective recomputation by memory: chooses, for each rank of the pipeline, the layers that keep less, so
// that the rank fits and recomputes as little as possible (activation_checkpointing.policy "fit").
#pragma once
#include "config_schema/ds_config.h"
#include "plan/job_plan.h"

namespace cleave::plan {

// Makes the engines of a configuration, which must outlive the maker.
using MakerOf = std::function<EngineMaker(const config::DsConfig& config)>;

// Sets full_layers and selective_layers of a configuration with the policy "fit" that has none, and returns
// true; otherwise returns false. A rank that fits keeps everything; another one first drops the outputs of
// norms and activation functions of some layers, which cost little time, then runs whole layers again. A rank
// that never fits drops most. Plans the first rank of each stage, which equals the others up to a few bytes.
// Throws Error(usage) if the job cannot be laid out.
bool fit_layers(config::DsConfig& config, int world, const MakerOf& maker, const MemoryLimits& limits);

// Returns "full 2,1,0,0, selective 4,4,4,3", or an empty text without numbers by rank.
std::string format_layers(const config::CheckpointingConfig& config);

}  // namespace cleave::plan
