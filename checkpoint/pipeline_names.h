// Names of parameters in a PipelineModule of DeepSpeed's. It calls them after the number of their layer in
// the pipeline, "7.mlp.up_proj.weight", and shared ones "tied_modules.KEY.weight"; what stands behind the
// number is the layer's own affair.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/weight_reader.h"

namespace cleave::checkpoint {

// Which of a published model's names each parameter of the pipeline has. Layers whose parameters end like
// those of the model's blocks are its blocks, in order; before them come embeddings and behind them the last
// norm and the head, found by shape, and among equals by the ends of their names. Error(checkpoint), which
// begins with `where`, names what has no counterpart, or several.
std::map<std::string, std::string> published_names(
    const std::map<std::string, std::vector<int64_t>>& pipeline, const WeightNames& model,
    const std::string& where);

}  // namespace cleave::checkpoint
