// One optimizer step.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "device/copy.h"
#include "optim/clipping.h"
#include "runtime/engine_state.h"

namespace cleave::runtime {

StepResult Engine::train_batch(const BatchSource& data) {
  State& s = *state_;
  const config::DsConfig& c = s.settings.config;
  const Averaging& average = s.settings.average;
  const StepBatches batches(data, int(c.gradient_accumulation_steps));
  std::vector<double> divisors = s.loss_divisors(batches);
  zero::ShardedOptimizer& optimizer = s.rank->optimizer();
  const double loss_scale = s.scaler.scale();
  // Exact sums take the loss scale out of every contribution, others out of the sum.
  const double left_scale = c.exact_sums ? 1 : loss_scale;
  const optim::Rates rates = s.settings.schedule.at(s.at.applied);
  optim::StepArgs update{.lr = rates.lr,
                         .momentum = rates.momentum,
                         .beta2 = rates.beta2,
                         .grad_scale = average.after * optim::gradient_factor(left_scale, 0, 0),
                         .step = s.at.applied - s.at.optimizer_begin + 1};
  optimizer.begin_step(s.settings.norm_first ? std::nullopt : std::optional(update), s.rank->summed_late,
                       s.streams->compute);
  s.rank->visits.begin_step(left_scale / loss_scale, &optimizer);
  s.run_training(s.micro_batches(batches, loss_scale, divisors));

  StepResult result{.step = s.at.step + 1, .lr = rates.lr, .loss_scale = loss_scale};
  result.grad_norm = std::sqrt(s.squared_norm()) * average.after / left_scale;
  result.loss = s.mean_loss(divisors);
  try {
    result.skipped = s.overflowed(result);
  } catch (const Error&) {
    s.whole = s.settings.norm_first;
    throw;
  }
  s.at.step = result.step;
  if (result.skipped) {
    ++s.at.skipped;
  } else {
    const TraceSpan seen(s.options.trace, s.streams->compute, "step", "update");
    ++s.at.applied;
    update.grad_scale =
        average.after * optim::gradient_factor(left_scale, result.grad_norm, c.gradient_clipping);
    optimizer.finish_step(update);
    if (!s.settings.update_runs_on) s.streams->synchronize();
  }
  if (s.options.trace && s.options.trace->on()) s.streams->synchronize(), s.options.trace->end_step();
  result.skipped_total = s.at.skipped;
  return result;
}

double Engine::State::mean_targets(const StepBatches& batches) {
  const MeshPlace& p = settings.place;  // ranks of one place on the data axis have the same samples
  int64_t all = p.pipe + p.sequence + p.tensor == 0 ? batches.valid_targets() : 0;
  ranks.all_reduce_on_host(Tensor(&all, DType::int64, {1}, MemoryKind::host), "targets of the step");
  if (settings.dry) return 1;
  require(all > 0, Exit::data,
          "step {}: no token of the batch's {} samples has a loss: its loss mask or its documents hide every "
          "target, so there is nothing to learn from it; leave such samples out, or make the batch larger",
          at.step + 1, settings.config.train_batch_size);
  return double(all) / (double(settings.config.gradient_accumulation_steps) * settings.mesh.data);
}

std::vector<double> Engine::State::loss_divisors(const StepBatches& batches) {
  return std::vector<double>(size_t(settings.config.gradient_accumulation_steps), mean_targets(batches));
}

Work Engine::State::micro_batches(const StepBatches& batches, double loss_scale,
                                  std::vector<double>& divisors) {
  return {.batch =
              [this, &batches, &divisors](int micro) {
                Batch batch = batches.next(micro);
                batch.position.seed = options.seed, batch.position.step = at.step;
                if (settings.loss_average == config::LossAverage::micro_batches)
                  divisors[size_t(micro)] = double(std::max<int64_t>(1, batch.valid_targets));
                return batch;
              },
          .scale = [before = settings.average.before, loss_scale,
                    &divisors](int micro) { return float(loss_scale * before / divisors[size_t(micro)]); },
          .losses = rank->losses};
}

void Engine::State::run_training(const Work& work) {
  Stream &compute = streams->compute, &comm = streams->comm();
  Executor(rank->stage, ranks.links(), compute, comm, options.trace, graphs.get())
      .run(pipeline.schedule.ranks[size_t(settings.place.pipe)], pipeline.schedule.shape, work);
  comm.wait(compute.record());
  ranks.sum_shared_gradients(rank->store, comm);
  compute.wait(comm.record());
  rank->visits.end_step();
  streams->rows.synchronize();  // what went wrong there
}

double Engine::State::squared_norm() {
  const std::vector<double> mine = rank->squares_of_units(streams->compute);
  // One place a unit of the model, so that the sum has one order wherever the pipe is cut; a unit that
  // several stages hold counts on one of them, and what all ranks of a tensor axis hold on its first.
  std::vector<double> squares(pipeline.units.size(), 0);
  for (int u = 0; u < rank->store.units(); ++u)
    if (rank->speaks_for(u) || std::isnan(mine[size_t(u)]))
      squares[size_t(pipeline.index_of(rank->store.layout(u).name()))] = mine[size_t(u)];
  return ranks.sum_in_order(std::move(squares), "squared gradient norm", streams->comm());
}

double Engine::State::mean_loss(const std::vector<double>& divisors) {
  std::vector<double> losses;
  if (reports_loss()) {
    losses = to_host<double>(rank->losses, streams->compute);
    losses.resize(divisors.size());
    for (size_t micro = 0; micro < divisors.size(); ++micro) losses[micro] /= divisors[micro];
  }
  const double micros = double(settings.config.gradient_accumulation_steps);
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  Stream& comm = streams->comm();
  if (!settings.config.exact_sums) return ranks.sum(sum / micros, "loss", comm) / settings.mesh.data;
  constexpr double kGrid = 0x1p40;
  const double limit = 0x1p62 / (micros * ranks.mesh().data->size());
  int64_t words[2] = {0, 0};  // multiples of 1 / kGrid, and how many losses are too large or not finite
  for (const double loss : losses)
    if (std::fabs(loss * kGrid) <= limit)
      words[0] += int64_t(std::nearbyint(loss * kGrid));
    else
      ++words[1];
  ranks.world().all_reduce(Tensor(words, DType::int64, {2}, MemoryKind::host), comm, {.what = "loss"});
  comm.synchronize();
  return words[1] > 0 ? std::nan("") : double(words[0]) / kGrid / (micros * settings.mesh.data);
}

// The norm is already summed over the ranks, so every rank answers alike.
bool Engine::State::overflowed(const StepResult& result) {
  const config::DsConfig& c = settings.config;
  const bool finite = std::isfinite(result.grad_norm);
  if (c.precision == config::Precision::fp16) {
    require(scaler.update(!finite) == optim::LossScaler::Update::ok, Exit::training,
            "step {}: the gradients overflow in fp16 and the loss scale is at its minimum of {}; lower the "
            "learning rate, or use bf16",
            result.step, scaler.scale());
    return !finite;
  }
  const bool may_skip =
      c.precision == config::Precision::bf16 && c.check_grad_overflow && std::isfinite(result.loss);
  require(finite || may_skip, Exit::training,
          "step {}: the loss is {} and the gradient norm {}; the run diverged: lower the learning rate, warm "
          "it up or clip gradients harder",
          result.step, result.loss, result.grad_norm);
  return !finite;
}

}  // namespace cleave::runtime
