// Files with the curves of a training: TensorBoard events and CSV, as the ds_config's sections "tensorboard"
// and "csv_monitor" select them. Tags and files are those of DeepSpeed's monitors.
#pragma once
#include <optional>
#include <span>

#include "config_schema/ds_config.h"
#include "monitor/csv_monitor.h"
#include "monitor/metrics.h"
#include "monitor/tensorboard.h"

namespace cleave::monitor {

class Monitors {
 public:
  // Starts a TensorBoard file; CSV files begin with their first row. Throws Error(usage) as TensorBoard does.
  Monitors(const config::TensorBoardConfig& tensorboard, const config::CsvConfig& csv);

  bool any() const { return tensorboard_ || csv_; }
  // Adds a point to each curve. `samples`: trained so far, the x axis.
  void write(std::span<const Scalar> scalars, int64_t samples);

 private:
  std::optional<TensorBoard> tensorboard_;
  std::optional<CsvMonitor> csv_;
};

}  // namespace cleave::monitor
