// One optimizer step around its passes.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/phase.h"
#include "core/warnings.h"
#include "kernels/elementwise.h"
#include "optim/clipping.h"
#include "runtime/step/engine_core.h"
#include "runtime/step/not_finite.h"
#include "runtime/step/state_records.h"

namespace cleave::runtime {
namespace {

// Returns true if the ranks of each pipeline stage have equal bytes; stages may have their own. Collective.
// Sums of a 16-bit fingerprint and of its square are exact in double and show a difference between the n
// ranks of a stage: n * sum(h^2) == sum(h)^2 only if all n fingerprints are equal.
bool equal_in_stages(Ranks& ranks, std::string_view bytes, std::string_view what) {
  const comm::Communicator& stages = *ranks.mesh().pipe;
  const int replicas = ranks.world().size() / stages.size();
  if (replicas == 1) return true;
  const double print = double(std::hash<std::string_view>()(bytes) & 0xffff);
  std::vector<double> sums(size_t(stages.size())), squares = sums;
  sums[size_t(stages.rank())] = print, squares[size_t(stages.rank())] = print * print;
  sums.insert(sums.end(), squares.begin(), squares.end());
  ranks.sum(sums, what);
  bool equal = true;
  for (size_t stage = 0; stage < squares.size(); ++stage)
    equal = equal && replicas * sums[squares.size() + stage] == sums[stage] * sums[stage];
  return equal;
}

// Replicas and slices with different rates or frozen parameters would diverge without an error.
void require_equal_updates(Ranks& ranks, int64_t step, std::span<const optim::Rates> rates,
                           const std::string& paused) {
  std::string bytes(reinterpret_cast<const char*>(rates.data()), rates.size_bytes());
  bytes += paused;
  require(
      equal_in_stages(ranks, bytes, "rates and frozen parameters of the step"), Exit::usage,
      "step {}: frozen parameters, or learning rates, betas or weight decay of the parameter groups differ "
      "between ranks (rank {} has {}frozen: {}); set equal values on all ranks",
      step, ranks.world().rank(),
      rates.empty() ? "" : fmt::format("the learning rate {} in its first group, ", rates.front().lr),
      paused.empty() ? "none" : paused);
}

}  // namespace

void EngineCore::begin_step() {
  zero::ShardedOptimizer& optimizer = rank->optimizer();
  if (copier) {
    if (settings.update_runs_on) streams->synchronize();
    copier->begin(at.step, to_json(own_position(), scaler.state(), options.seed, client_of_copies));
  }
  summed = shown = false, uses = 1;
  const optim::Rates rates = next_rates();
  result = {.step = at.step + 1, .lr = rates.lr, .loss_scale = scaler.scale()};
  update = {.rates = rates,
            .groups = {},
            .grad_scale = factor_of_sums(0, 0),
            .step = at.applied - at.optimizer_begin + 1};
  optimizer.begin_step(updates_last() ? std::nullopt : std::optional(update), rank->summed_late,
                       streams->compute);
  computes->visits().begin_step(left_scale() / result.loss_scale, &optimizer);
  computes->begin_step();
  if (pulse && !updates_last())
    rank->store.wait_for_weights(), pulse->check(*rank, result.step, streams->compute);
}

StepResult EngineCore::finish_step(const std::function<double()>& mean_loss,
                                   std::span<const optim::Rates> rates) {
  const PhaseMark phase("update");
  // Before the sum of the losses over all ranks: a rank that has it knows that all ranks have this copy.
  if (copier) copier->finish();
  if (!rates.empty()) result.lr = rates.front().lr, update.groups.assign(rates.begin(), rates.end());
  sum_gradients();
  const double norm = std::sqrt(squared_norm());
  result.grad_norm = shown ? norm : norm * settings.average.after / left_scale();
  result.loss = mean_loss();
  if (may_pause || !rates.empty()) require_equal_updates(ranks, result.step, rates, paused_names());
  try {
    result.skipped = overflowed();
  } catch (const Error&) {
    whole = updates_last();
    throw;
  }
  at.step = result.step;
  if (pulse && updates_last()) pulse->check(*rank, result.step, streams->compute);
  if (result.skipped) {
    ++at.skipped;
  } else {
    const TraceSpan seen(options.trace, streams->compute, "step", "update");
    ++at.applied, next_lr.reset();
    remember_loss();
    computes->join_step();
    update.grad_scale = factor_of_sums(result.grad_norm, settings.clipping);
    rank->optimizer().finish_step(update);
    if (!settings.update_runs_on) streams->synchronize();
  }
  if (options.trace && options.trace->on()) streams->synchronize(), options.trace->end_step();
  result.skipped_total = at.skipped;
  if (pulse) pulse->end_step(*rank, result.step, streams->compute);
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
  const double scale = unscaled();
  for (float& g : values) g = float(g * scale);
  return values;
}

std::vector<float> EngineCore::own_gradient(const std::string& name) {
  std::vector<float> values(size_t(trained_numel(name)), 0.0f);
  require(settings.stage <= 1, Exit::usage,
          "gradient of {}: sums over the ranks in each backward at ZeRO stage {}; read it after the last "
          "backward of a step",
          name, settings.stage);
  rank->store.wait_for_gradients();
  streams->synchronize();
  read_own_gradient(*rank, name, values, streams->compute);
  const double scale = 1 / (left_scale() * settings.average.before * double(settings.micros));
  for (float& g : values) g = float(g * scale);
  return values;
}

void EngineCore::write_whole_gradient(const std::string& name, std::span<const float> values) {
  const int64_t numel = trained_numel(name);
  CHECK(int64_t(values.size()) == numel, "{} has {} elements, got {}", name, numel, values.size());
  require(updates_last(), Exit::usage,
          "{} may be updated already: without clipping, a loss scale or a check for overflows an update runs "
          "as soon as its gradient is whole; set gradient_clipping (a large one changes nothing)",
          name);
  sum_gradients();
  // A visit writes gradients of the scaled loss; the form removes the scale afterwards.
  const double unscale = rank->store.gradient_form().left_scale(result.loss_scale) / result.loss_scale;
  const double scale = 1 / unscaled() / unscale;
  std::vector<float> written(values.begin(), values.end());
  for (float& g : written) g = float(g * scale);
  write_gradient(*rank, name, written, memory, streams->compute);
}

void EngineCore::show_gradients() {
  zero::GradientShards& gradients = rank->store.gradients();
  require(settings.stage <= 1, Exit::usage,
          "gradients: not whole on a rank at ZeRO stage {}; read them by deepspeed.utils.safe_get_full_grad",
          settings.stage);
  require(gradients.form().apart_numel(1) == 0 && gradients.form().decoded_numel(1) == 0, Exit::usage,
          "gradients: not summed as floating-point numbers in memory; read them by "
          "deepspeed.utils.safe_get_full_grad, or remove cleave.exact_sums and compressed gradients");
  CHECK(updates_last(), "show_gradients: updates do not wait");
  sum_gradients();
  const double scale = unscaled();
  Stream &compute = streams->compute, &comm = streams->comm();
  comm.wait(compute.record());
  std::vector<Tensor> gathered;
  for (int u = 0; u < gradients.units(); ++u) gathered.push_back(gradients.gather(u));
  compute.wait(comm.record());
  for (const Tensor& gradient : gathered)
    if (scale != 1 && gradient.numel() > 0)
      kernels::launch(kernels::Scale{.y = gradient, .x = gradient, .factor = float(scale)}, compute);
  shown = true;
  if (!settings.device.is_cuda()) compute.synchronize();
}

void EngineCore::pause(std::span<const std::string> names) {
  std::set<std::string_view> missing(names.begin(), names.end());
  for (int u = 0; u < rank->store.units(); ++u)
    for (int p = 0; p < rank->store.layout(u).params(); ++p)
      rank->optimizer().updates(u, p).paused = missing.erase(rank->store.layout(u).param(p).name) > 0;
  require(missing.empty(), Exit::usage, "{}: has no parameter {} on this rank", units.model,
          missing.empty() ? "" : *missing.begin());
}

std::string EngineCore::paused_names() const {
  std::vector<std::string> names;
  for (int u = 0; u < rank->store.units(); ++u)
    for (int p = 0; p < rank->store.layout(u).params(); ++p)
      if (rank->optimizer().updates(u, p).paused) names.push_back(rank->store.layout(u).param(p).name);
  return fmt::format("{}", fmt::join(names, ", "));
}

optim::Rates EngineCore::next_rates() const {
  optim::Rates rates = settings.schedule.at(std::max<int64_t>(0, at.applied - at.schedule_begin));
  rates.lr = next_lr.value_or(rates.lr);
  return rates;
}

double EngineCore::factor_of_sums(double norm, double clipping) const {
  return shown ? optim::gradient_factor(1, norm, clipping)
               : settings.average.after * optim::gradient_factor(left_scale(), norm, clipping);
}

double EngineCore::squared_norm() {
  // One slot per unit of the model, so that the order of the sum is equal for every cut of the pipeline.
  unit_squares = rank->squared_gradients(streams->compute);
  streams->rows.synchronize();  // throws errors of that stream, which is done by now
  return ranks.sum_in_order(unit_squares, "squared gradient norm");
}

double EngineCore::mean_over_ranks(const std::vector<double>& losses) {
  own_losses = losses;
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
std::string EngineCore::what_is_not_finite() {
  const auto number = [](double x) {
    return std::isnan(x) ? std::abs(x) : x;
  };  // the sign of a NaN means nothing
  const NotFinite first = first_not_finite(*rank, ranks,
                                           {.squares = unit_squares,
                                            .losses = own_losses,
                                            .micros = settings.micros,
                                            .dtype = settings.dtype,
                                            .has_updates = !updates_last()},
                                           streams->compute);
  const std::string layer = first.micro && updates_last() ? first_bad_layer(first.micro->micro) : "";
  return with_samples(fmt::format("the loss is {} and the gradient norm {}: {}{}", number(result.loss),
                                  number(result.grad_norm), first.text, layer),
                      first.micro);
}

std::string EngineCore::with_samples(std::string text, const std::optional<MicroPlace>& micro) const {
  return samples ? text + "; " + samples(micro) : text;
}

bool EngineCore::overflowed() {
  const bool finite = std::isfinite(result.grad_norm);
  if (settings.scales_loss) {
    if (scaler.update(!finite) == optim::LossScaler::Update::ok) return !finite || spikes();
    fail(Exit::training,
         "step {}: the gradients overflow in fp16 and the loss scale is at its minimum of {}; {}; lower the "
         "learning rate, or use bf16",
         result.step, scaler.scale(), what_is_not_finite());
  }
  if (settings.writes_overflows) return spikes();
  require(
      finite || !settings.store.exact() || !std::isfinite(result.loss), Exit::training,
      "cleave.exact_sums_grid: a gradient of step {} is not finite or out of the range of the sums (got a "
      "grid of {}, expected gradients below {:.2g}); set a smaller grid, or lower the learning rate if the "
      "run diverged",
      result.step, settings.store.grid, std::ldexp(settings.store.limit, -settings.store.grid));
  if (finite) return spikes();
  if (settings.skips_overflows && std::isfinite(result.loss)) return true;
  return leave_out(what_is_not_finite());
}

bool EngineCore::spikes() {
  const auto [factor, steps] = settings.spike;
  if (factor > 0 && int64_t(at.losses.size()) >= steps) {
    std::vector<double> last(at.losses.end() - steps, at.losses.end());
    const auto middle = last.begin() + steps / 2;
    std::ranges::nth_element(last, middle);
    if (*middle > 0 && result.loss > factor * *middle)
      return leave_out(with_samples(
          fmt::format("the loss of {:.6g} is a spike, {:.3g} times the median {:.6g} of the last {} updates "
                      "(cleave.loss_spike is {:g})",
                      result.loss, result.loss / *middle, *middle, steps, factor),
          {}));
  }
  if (!settings.rolls_back) missed_steps = 0;
  return false;
}

void EngineCore::remember_loss() {
  if (settings.spike.factor == 0 || !std::isfinite(result.loss)) return;
  at.losses.push_back(result.loss);
  const auto extra = int64_t(at.losses.size()) - settings.spike.steps;
  if (extra > 0) at.losses.erase(at.losses.begin(), at.losses.begin() + extra);
}

bool EngineCore::leave_out(const std::string& what) {
  if (missed_steps < settings.most_missed) {
    ++missed_steps, result.bad = what;
    if (!settings.rolls_back && ranks.world().rank() == 0) warn("step {} is skipped: {}", result.step, what);
    return true;
  }
  const std::string before = settings.most_missed == 0 ? ""
                             : settings.rolls_back
                                 ? fmt::format(" (rolled back {} times before)", missed_steps)
                                 : fmt::format(" (step {} of this kind in a row)", missed_steps + 1);
  fail(Exit::training,
       "step {}: {}{}; the run diverged: lower the learning rate, warm it up or clip gradients harder",
       result.step, what, before);
}

}  // namespace cleave::runtime
