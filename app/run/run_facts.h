// What a run was trained with, as its checkpoints remember it, so that a resumed run can say what changed.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/run/run_options.h"
#include "config_schema/ds_config.h"
#include "data/data_sources.h"

namespace cleave::app {

// The model and its config, tokenizer, sequence length, seed, batch, optimizer and data; evaluation and
// generation read some of them.
nlohmann::json run_facts(const RunOptions& options, const model::ModelConfig& model,
                         const config::DsConfig& config, const data::DataSources& data);

// One sentence for each fact that both have and that differs, with both values. Shapes are left to the reader
// of checkpoints, and the settings of the ds_config to the engine (EngineBase::changed_settings).
std::vector<std::string> changes_of_facts(const nlohmann::json& saved, const nlohmann::json& now);

}  // namespace cleave::app
