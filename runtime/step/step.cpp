// One optimizer step around its passes.
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/clipping.h"
#include "runtime/step/engine_core.h"
#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace {

// Replicas and slices with different rates would diverge without an error; stages of a pipeline may have
// their own. Sums of a 16-bit fingerprint and of its square are exact in double and show a difference between
// the n ranks of a stage: n * sum(h^2) == sum(h)^2 only if all n fingerprints are equal.
void require_equal_rates(Ranks& ranks, int64_t step, std::span<const optim::Rates> rates) {
  const comm::Communicator& stages = *ranks.mesh().pipe;
  const int replicas = ranks.world().size() / stages.size();
  if (rates.empty() || replicas == 1) return;
  const auto* bytes = reinterpret_cast<const char*>(rates.data());
  const double print = double(std::hash<std::string_view>()({bytes, rates.size_bytes()}) & 0xffff);
  std::vector<double> sums(size_t(stages.size())), squares = sums;
  sums[size_t(stages.rank())] = print, squares[size_t(stages.rank())] = print * print;
  sums.insert(sums.end(), squares.begin(), squares.end());
  ranks.sum(sums, "rates of the step");
  for (size_t stage = 0; stage < squares.size(); ++stage)
    require(replicas * sums[squares.size() + stage] == sums[stage] * sums[stage], Exit::usage,
            "step {}: learning rates, betas or weight decay of the parameter groups differ between ranks "
            "(rank {} has the learning rate {} in its first group); set equal values on all ranks",
            step, ranks.world().rank(), rates.front().lr);
}

}  // namespace

void EngineCore::begin_step() {
  zero::ShardedOptimizer& optimizer = rank->optimizer();
  summed = false, uses = 1;
  const optim::Rates rates = settings.schedule.at(at.applied);
  result = {.step = at.step + 1, .lr = rates.lr, .loss_scale = scaler.scale()};
  update = {.rates = rates,
            .groups = {},
            .grad_scale = settings.average.after * optim::gradient_factor(left_scale(), 0, 0),
            .step = at.applied - at.optimizer_begin + 1};
  optimizer.begin_step(settings.norm_first ? std::nullopt : std::optional(update), rank->summed_late,
                       streams->compute);
  computes->visits().begin_step(left_scale() / result.loss_scale, &optimizer);
  computes->begin_step();
}

StepResult EngineCore::finish_step(const std::function<double()>& mean_loss,
                                   std::span<const optim::Rates> rates) {
  if (!rates.empty()) result.lr = rates.front().lr, update.groups.assign(rates.begin(), rates.end());
  sum_gradients();
  result.grad_norm = std::sqrt(squared_norm()) * settings.average.after / left_scale();
  result.loss = mean_loss();
  require_equal_rates(ranks, result.step, rates);
  try {
    result.skipped = overflowed();
  } catch (const Error&) {
    whole = settings.norm_first;
    throw;
  }
  at.step = result.step;
  if (result.skipped) {
    ++at.skipped;
  } else {
    const TraceSpan seen(options.trace, streams->compute, "step", "update");
    ++at.applied;
    computes->join_step();
    update.grad_scale =
        settings.average.after * optim::gradient_factor(left_scale(), result.grad_norm, settings.clipping);
    rank->optimizer().finish_step(update);
    if (!settings.update_runs_on) streams->synchronize();
  }
  if (options.trace && options.trace->on()) streams->synchronize(), options.trace->end_step();
  result.skipped_total = at.skipped;
  return result;
}

void EngineCore::sum_gradients() {
  if (std::exchange(summed, true)) return;
  Stream &compute = streams->compute, &comm = streams->comm();
  comm.wait(compute.record());
  ranks.sum_shared_gradients(rank->store, comm);
  compute.wait(comm.record());
  computes->visits().end_step();
}

int64_t EngineCore::trained_numel(const std::string& name) const {
  for (const UnitSpec& unit : units.all)
    for (const ParamSpec& p : unit.params)
      if (p.name == name) {
        require(!unit.frozen, Exit::usage, "{} is frozen: it has no gradient", name);
        return p.whole_numel();
      }
  fail(Exit::usage, "{}: has no parameter {}", units.model, name);
}

std::vector<float> EngineCore::whole_gradient(const std::string& name) {
  const int64_t numel = trained_numel(name);
  sum_gradients();
  std::vector<float> values(size_t(numel), 0.0f);
  read_gradient(*rank, name, values, streams->compute);
  streams->rows.synchronize();  // as in squared_norm()
  // Each element is nonzero on only one rank, so the sum is exact.
  ranks.world().all_reduce(Tensor(values.data(), DType::fp32, {numel}, MemoryKind::host), streams->comm(),
                           {.what = "a whole gradient"});
  streams->comm().synchronize();
  const double scale = settings.average.after / left_scale();
  for (float& g : values) g = float(g * scale);
  return values;
}

void EngineCore::write_whole_gradient(const std::string& name, std::span<const float> values) {
  const int64_t numel = trained_numel(name);
  CHECK(int64_t(values.size()) == numel, "{} has {} elements, got {}", name, numel, values.size());
  require(settings.norm_first, Exit::usage,
          "{} may be updated already: without clipping, a loss scale or a check for overflows an update runs "
          "as soon as its gradient is whole; set gradient_clipping (a large one changes nothing)",
          name);
  sum_gradients();
  // A visit writes gradients of the scaled loss; the form removes the scale afterwards.
  const double unscale = rank->store.gradient_form().left_scale(result.loss_scale) / result.loss_scale;
  const double scale = left_scale() / settings.average.after / unscale;
  std::vector<float> written(values.begin(), values.end());
  for (float& g : written) g = float(g * scale);
  write_gradient(*rank, name, written, memory, streams->compute);
}

double EngineCore::squared_norm() {
  // One slot per unit of the model, so that the order of the sum is equal for every cut of the pipeline.
  std::vector<double> squares = rank->squared_gradients(streams->compute);
  streams->rows.synchronize();  // throws errors of that stream, which is done by now
  return ranks.sum_in_order(std::move(squares), "squared gradient norm");
}

double EngineCore::mean_over_ranks(const std::vector<double>& losses) {
  const auto micros = double(settings.micros);
  const double grid = rank->store.gradient_form().grid_of_losses();
  if (grid == 0) {
    const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
    return ranks.sum(sum / micros, "loss") / settings.mesh.data;
  }
  // Multiples of the grid, with separate low and high halves so that any number of terms fits; and the number
  // of losses that are too large or not finite.
  int64_t words[3] = {0, 0, 0};
  for (const double loss : losses)
    if (std::fabs(loss / grid) <= 0x1p62) {
      const auto multiple = int64_t(std::nearbyint(loss / grid));
      words[0] += multiple & 0xffffffff, words[1] += multiple >> 32;
    } else {
      ++words[2];
    }
  ranks.all_reduce_on_host(Tensor(words, DType::int64, {3}, MemoryKind::host), "loss");
  if (words[2] > 0) return std::nan("");
  const __int128 sum = (__int128(words[1]) << 32) + words[0];
  return double(sum) * grid / (micros * settings.mesh.data);
}

// The norm is already summed over the ranks, so every rank gets the same result.
bool EngineCore::overflowed() {
  const bool finite = std::isfinite(result.grad_norm);
  if (settings.scales_loss) {
    require(scaler.update(!finite) == optim::LossScaler::Update::ok, Exit::training,
            "step {}: the gradients overflow in fp16 and the loss scale is at its minimum of {}; lower the "
            "learning rate, or use bf16",
            result.step, scaler.scale());
    return !finite;
  }
  require(
      finite || !settings.store.exact() || !std::isfinite(result.loss), Exit::training,
      "cleave.exact_sums_grid: a gradient of step {} is not finite or out of the range of the sums (got a "
      "grid of {}, expected gradients below {:.2g}); set a smaller grid, or lower the learning rate if the "
      "run diverged",
      result.step, settings.store.grid, std::ldexp(settings.store.limit, -settings.store.grid));
  const bool may_skip = settings.skips_overflows && std::isfinite(result.loss);
  require(finite || may_skip, Exit::training,
          "step {}: the loss is {} and the gradient norm {}; the run diverged: lower the learning rate, warm "
          "it up or clip gradients harder",
          result.step, result.loss, result.grad_norm);
  return !finite;
}

}  // namespace cleave::runtime
