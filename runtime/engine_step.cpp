// A step of layers: micro-batches and their losses.
#include <algorithm>

#include "device/copy.h"
#include "runtime/engine_state.h"

namespace cleave::runtime {

StepResult Engine::train_batch(const BatchSource& data) {
  State& s = state();
  const StepBatches batches(data, int(s.settings.micros));
  std::vector<double> divisors(size_t(s.settings.micros), s.mean_targets(batches));
  s.begin_step();
  const pipeline::Schedule& schedule = s.pipeline.schedule;
  s.trainer().run(schedule.ranks[size_t(s.settings.place.pipe)], schedule.shape,
                  s.micro_batches(batches, divisors));
  return s.finish_step([&] { return s.mean_over_ranks(s.losses(divisors)); });
}

double Engine::State::mean_targets(const StepBatches& batches) {
  const MeshPlace& p = settings.place;  // ranks of one place on the data axis have the same samples
  int64_t all = p.pipe + p.sequence + p.tensor == 0 ? batches.valid_targets() : 0;
  ranks.all_reduce_on_host(Tensor(&all, DType::int64, {1}, MemoryKind::host), "targets of the step");
  if (settings.dry) return 1;
  require(all > 0, Exit::data,
          "step {}: no token of the batch's {} samples has a loss: its loss mask or its documents hide every "
          "target, so there is nothing to learn from it; leave such samples out, or make the batch larger",
          at.step + 1, config.train_batch_size);
  return double(all) / (double(settings.micros) * settings.mesh.data);
}

Work Engine::State::micro_batches(const StepBatches& batches, std::vector<double>& divisors) {
  return {.batch =
              [this, &batches, &divisors](int micro) {
                Batch batch = batches.next(micro);
                batch.position.seed = options.seed, batch.position.step = at.step;
                if (settings.loss_average == config::LossAverage::micro_batches)
                  divisors[size_t(micro)] = double(std::max<int64_t>(1, batch.valid_targets));
                return batch;
              },
          .scale = [factor = result.loss_scale * settings.average.before,
                    &divisors](int micro) { return float(factor / divisors[size_t(micro)]); },
          .losses = layers().losses};
}

std::vector<double> Engine::State::losses(const std::vector<double>& divisors) {
  if (!reports_loss() && !reports_side_loss()) return {};
  std::vector<double> losses(divisors.size());
  const auto add = [&](const Tensor& of_micros) {
    const std::vector<double> each = to_host<double>(of_micros, streams->compute);
    for (size_t micro = 0; micro < losses.size(); ++micro) losses[micro] += each[micro];
  };
  if (reports_loss()) add(layers().losses);
  if (reports_side_loss()) add(layers().side_losses);
  for (size_t micro = 0; micro < divisors.size(); ++micro) losses[micro] /= divisors[micro];
  return losses;
}

Executor Engine::State::trainer() {
  return {layers().stage, links(), streams->compute, streams->comm(), options.trace, graphs.get()};
}

}  // namespace cleave::runtime
