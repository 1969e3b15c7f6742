#include "app/run/epochs.h"

#include <algorithm>
#include <cmath>

#include "data/data_sources.h"
#include "data/samples.h"

namespace cleave::app {

EpochLength epoch_length(const RunOptions& options, const config::DsConfig& config) {
  const data::DataSources data(options.data, reading_of(options.model), "--data", options.texts);
  int64_t samples = 0;
  for (const data::TokenFile& file : data.files())
    samples +=
        data::samples_of(file, {options.model.seq_len, options.pack, options.model.document_mask})->size();
  const bool drop_last = config.dataloader_drop_last && !data.blended();
  const data::Sampler sampler{
      .samples = samples, .drop_last = drop_last, .global_batch = config.train_batch_size};
  return {samples, std::max<int64_t>(1, sampler.steps_per_epoch())};
}

int64_t steps_of(double epochs, const EpochLength& length) {
  const double steps = epochs * double(length.steps);
  constexpr double kRounding = 1e-9;  // 0.1 epochs of 30 steps are 3
  return std::max<int64_t>(1, int64_t(std::ceil(steps * (1 - kRounding))));
}

std::string epoch_value(const RunOptions& o, const EpochLength& length) {
  return fmt::format("{} samples of {} tokens, {} steps per epoch; {} steps are {:.3g} epochs",
                     length.samples, o.model.seq_len, length.steps, o.steps, length.epochs(o.steps));
}

}  // namespace cleave::app
