#include "monitor/monitors.h"

#include <filesystem>

namespace cleave::monitor {

Monitors::Monitors(const config::TensorBoardConfig& tensorboard, const config::CsvConfig& csv) {
  if (tensorboard.enabled) {
    const std::filesystem::path base = tensorboard.output_path.empty() ? "./runs" : tensorboard.output_path;
    tensorboard_.emplace((base / tensorboard.job_name).string());
  }
  if (csv.enabled) csv_.emplace(csv.output_path, csv.job_name);
}

void Monitors::write(std::span<const Scalar> scalars, int64_t samples) {
  for (const Scalar& scalar : scalars) {
    if (tensorboard_) tensorboard_->scalar(scalar.tag, scalar.value, samples);
    if (csv_) csv_->scalar(scalar.tag, scalar.value, samples);
  }
}

}  // namespace cleave::monitor
