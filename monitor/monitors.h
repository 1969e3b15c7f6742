// Outputs of the curves of a training: TensorBoard events and CSV, as the ds_config sections "tensorboard"
// and "csv_monitor" select them, with the tags and files of their DeepSpeed monitors; and an MLflow run.
#pragma once
#include <memory>
#include <vector>

#include "config_schema/ds_config.h"
#include "monitor/sink.h"

namespace cleave::monitor {

// Returns a sink per enabled section. Starts a TensorBoard file, and creates the folder of CSV files, which
// begin with their first row; sends nothing to MLflow yet. Throws Error(usage) if it cannot.
std::vector<std::unique_ptr<Sink>> monitors_of(const config::DsConfig& config);

}  // namespace cleave::monitor
