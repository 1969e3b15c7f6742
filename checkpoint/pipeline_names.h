// Maps parameter names of a DeepSpeed PipelineModule to published names. The module names a parameter after
// its layer number in the pipeline, "7.mlp.up_proj.weight", and a shared one "tied_modules.KEY.weight"; the
// layer defines the rest of the name.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/weight_reader.h"

namespace cleave::checkpoint {

// Returns the published name of each pipeline parameter. Layers with parameter names that end like those of
// the model's blocks are its blocks, in order. Embeddings come before them; the last norm and the head come
// after them. These are matched by shape, then by the ends of their names. Throws Error(checkpoint), which
// begins with `where` and names parameters with no match or several.
std::map<std::string, std::string> published_names(
    const std::map<std::string, std::vector<int64_t>>& pipeline, const WeightNames& model,
    const std::string& where);

}  // namespace cleave::checkpoint
