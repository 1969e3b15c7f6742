// A step of layers: micro-batches and their losses.
#include <limits>

#include "device/copy.h"
#include "runtime/engine_state.h"

namespace cleave::runtime {

namespace {

// Of a micro-batch's own mean. Without a target it counts as a loss of 0, its side losses, too.
double divisor_of_mean(int64_t targets) {
  return targets > 0 ? double(targets) : std::numeric_limits<double>::infinity();
}

}  // namespace

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
                  divisors[size_t(micro)] = divisor_of_mean(batch.valid_targets);
                return batch;
              },
          .scale = [factor = result.loss_scale * settings.average.before,
                    &divisors](int micro) { return float(factor / divisors[size_t(micro)]); },
          .losses = layers().losses};
}

std::vector<double> Engine::State::losses(const std::vector<double>& divisors) {
  std::vector<double> terms;
  const auto add = [&](const Tensor& of_micros) {
    const std::vector<double> each = to_host<double>(of_micros, streams->compute);
    const auto columns = size_t(of_micros.dim(1));
    for (size_t i = 0; i < each.size(); ++i)
      if (const size_t micro = i % columns; micro < divisors.size())
        terms.push_back(each[i] / divisors[micro]);
  };
  if (reports_loss()) add(layers().losses);
  if (reports_side_loss()) add(layers().side_losses);
  return terms;
}

Executor Engine::State::trainer() {
  return {layers().stage, links(), streams->compute, streams->comm(), options.trace, graphs.get()};
}

}  // namespace cleave::runtime
