#include "app/run/roll_back.h"

#include "core/warnings.h"

namespace cleave::app {

bool rolls_back(const config::DsConfig& config) { return config.non_finite == config::NonFinite::roll_back; }

void roll_back(RunParts& run, const runtime::StepResult& bad) {
  const std::string tag = run.folder.roll_back(run.engine, run.facts);
  require(
      !tag.empty(), Exit::training,
      "step {}: {}; cleave.non_finite: nothing to roll back to: {} contains no complete checkpoint of this "
      "run",
      bad.step, bad.bad, run.wanted.output);
  run.best.restore(run.folder.resumed_facts());
  run.batches.skip(bad.step - 1);
  if (run.job.first())
    warn("step {}: {}; rolled back to {}/{}, and skips the data of step {}", bad.step, bad.bad,
         run.wanted.output, tag, bad.step);
  run.job.together([&] { run.batches.prepare(run.engine.step()); });
}

std::string samples_of(const RunParts& run, const std::optional<runtime::MicroPlace>& micro) {
  const config::DsConfig& c = run.engine.config();
  const int64_t step = run.engine.step();
  if (!micro)
    return fmt::format("the samples of the step, counted from 0, are {}",
                       run.data.samples_of(run.batches, step, {0, c.train_batch_size}));
  const DataPlace place = data_place(c, micro->rank, run.job.info().world);
  return fmt::format("the samples of that micro-batch, counted from 0, are {}",
                     run.data.samples_of(run.batches, step,
                                         data::micro_batch_positions(micro->micro, place.rank, place.ranks,
                                                                     c.train_micro_batch_size_per_gpu)));
}

}  // namespace cleave::app
