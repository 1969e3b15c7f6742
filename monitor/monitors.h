// Files with the curves of a training: TensorBoard events and CSV, as the ds_config's sections "tensorboard"
// and "csv_monitor" select them. Tags and files are those of DeepSpeed's monitors.
#pragma once
#include <memory>
#include <vector>

#include "config_schema/ds_config.h"
#include "monitor/sink.h"

namespace cleave::monitor {

// Returns a sink per enabled section. Starts a TensorBoard file, and creates the folder of CSV files, which
// begin with their first row. Throws Error(usage) if it cannot.
std::vector<std::unique_ptr<Sink>> monitors_of(const config::TensorBoardConfig& tensorboard,
                                               const config::CsvConfig& csv);

}  // namespace cleave::monitor
