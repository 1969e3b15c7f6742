// Options of other training programs and launchers, and the equivalents in Cleave.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cleave::app {

// Returns "; use --steps" for --train_iters if `known` has --steps, "; set pipeline.stages in the
// ds_config" for --pipeline_model_parallel_size, and an empty string for other names. `option` has the
// spelling of this program, without a value.
std::string equivalent_of(std::string_view option, const std::vector<std::string>& known);

}  // namespace cleave::app
