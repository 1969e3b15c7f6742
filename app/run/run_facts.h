// Facts of a training run in its checkpoints, so that a resumed run can report changes.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/run/run_options.h"
#include "config_schema/ds_config.h"
#include "data/data_sources.h"

namespace cleave::app {

// Returns the model and its config, tokenizer, sequence length, seed, batch, optimizer and data.
// Evaluation and generation read some of them.
nlohmann::json run_facts(const RunOptions& options, const model::ModelConfig& model,
                         const config::DsConfig& config, const data::DataSources& data);

// Returns a sentence, with both values, for each fact that exists in both and differs. The checkpoint reader
// checks shapes, and the engine the settings of the ds_config (EngineBase::changed_settings).
std::vector<std::string> changes_of_facts(const nlohmann::json& saved, const nlohmann::json& now);

}  // namespace cleave::app
