// Step of a layer engine: micro-batches and their losses.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "device/copy.h"
#include "runtime/engine_state.h"
#include "runtime/step_batches.h"

namespace cleave::runtime {

namespace {

bool has_not_finite(const Tensor& t, Stream& stream) {
  bool found = false;
  with_float(t.dtype(), [&]<class T>(T) {
    found = std::ranges::any_of(to_host<T>(t, stream), [](T x) { return !std::isfinite(to_float(x)); });
  });
  return found;
}

// Divisor for a micro-batch's mean. Without targets its loss and side losses count as 0.
double divisor_of_mean(int64_t targets) {
  return targets > 0 ? double(targets) : std::numeric_limits<double>::infinity();
}

}  // namespace

StepResult Engine::train_batch(const BatchSource& data) {
  return train_batch(StepBatches(data, int(state().settings.micros)).all());
}

StepResult Engine::train_batch(std::span<const Batch> batches, const std::function<void(int)>& begins) {
  State& s = state();
  CHECK(int64_t(batches.size()) == s.settings.micros, "a step of {} micro-batches, got {}", s.settings.micros,
        batches.size());
  std::vector<double> divisors(batches.size(), s.mean_targets(batches));
  if (s.settings.loss_average == config::LossAverage::micro_batches)
    std::ranges::transform(batches, divisors.begin(),
                           [](const Batch& batch) { return divisor_of_mean(batch.valid_targets); });
  s.begin_step();
  Work work = s.work_of(batches, divisors);
  work.begins = begins;
  const pipeline::Schedule& schedule = s.pipeline.schedule;
  s.trainer().run(schedule.ranks[size_t(s.settings.place.pipe)], schedule.shape, work);
  s.layers().fetch_losses();
  if (s.seen) {
    s.sees_gradients = true;
    s.seen();
    s.sees_gradients = false;
  }
  s.current = batches;
  const StepResult result = s.finish_step([&] {
    return s.mean_over_ranks(s.losses(divisors, {0, s.settings.micros}));
  });
  s.current = {};
  return result;
}

void Engine::begin_step() {
  State& s = state();
  require(s.settings.mesh.pipe == 1, Exit::usage,
          "pipeline.stages is {}: pipeline ranks compute the micro-batches of a step concurrently, but {} "
          "come one by one; set 1",
          s.settings.mesh.pipe, s.model.name);
  s.begun.emplace();
  s.EngineCore::begin_step();
}

double Engine::scale() const { return state().result.loss_scale * state().settings.average.before; }

double Engine::train_micro_batch(const Batch& batch, double items) {
  State& s = state();
  CHECK(s.begun, "train_micro_batch: no step was begun");
  auto& [divisors, terms, shares, used] = *s.begun;
  const auto micro = int(divisors.size());
  // Scale losses that are parts of a step up to the size of means, so that 16-bit types can hold the
  // gradients.
  const double parts = items > 0 ? double(s.settings.micros) * s.settings.mesh.data : 1;
  require(items >= 0 && std::isfinite(items) && (micro == 0 || shares == parts), Exit::usage,
          "micro-batch {}: divided by an invalid number of items (got {}, expected a positive number for all "
          "micro-batches of the step, or for none)",
          micro, items);
  shares = parts;
  require(micro < s.settings.micros, Exit::usage,
          "gradient_accumulation_steps: too many micro-batches in a step (expected {})", s.settings.micros);
  divisors.emplace_back();
  divisors.back() = items > 0 ? items / parts : divisor_of_mean(batch.valid_targets);
  std::vector<Batch> placed(divisors.size(), batch);  // the earlier ones are computed already
  placed.back().position.first_sample =
      (micro * s.settings.mesh.data + s.settings.place.data) * samples_per_micro();
  const pipeline::Schedule& schedule = s.pipeline.schedule;
  s.trainer().run(schedule.ranks[0], schedule.shape, s.work_of(placed, divisors), micro);
  s.layers().fetch_losses();
  s.streams->compute.synchronize();
  const std::vector<double> its = s.losses(divisors, Range{0, 1}.shifted(micro));
  terms.insert(terms.end(), its.begin(), its.end());
  const double loss = s.loss_of_place(its) / parts;
  return items > 0 || batch.valid_targets > 0 ? loss : std::nan("");
}

void Engine::use_loss(double times) {
  State& s = state();
  CHECK(s.begun, "use_loss: no step was begun");
  // Round, because the caller's value passed through a float.
  if (std::fabs(times - std::round(times)) <= 1e-6 * times) times = std::round(times);
  std::optional<double>& used = s.begun->used;
  require(times > 0 && std::isfinite(times), Exit::usage,
          "micro-batch: its loss is used an invalid number of times (got {}, expected a positive number)",
          times);
  require(!used || std::fabs(*used - times) <= 1e-4 * times, Exit::usage,
          "micro-batch: its loss is used another number of times than earlier ones of the step (got {}, "
          "expected {}); "
          "use all in the same way",
          times, used.value_or(1));
  if (!used) used = times;
}

void Engine::on_gradients(std::function<void()> seen) {
  State& s = state();
  s.seen = std::move(seen);
  s.waits = bool(s.seen);
}

void Engine::require_whole_gradients(const std::string& name) {
  State& s = state();
  if (s.sees_gradients) return;
  require(
      s.begun && int64_t(s.begun->divisors.size()) == s.settings.micros, Exit::usage,
      "gradient of {}: complete only between the last micro-batch of a step and its update; read it there",
      name);
  s.agree_on_use(*s.begun);
}

std::vector<float> Engine::gradient(const std::string& name) {
  require_whole_gradients(name);
  return state().whole_gradient(name);
}

void Engine::write_gradient(const std::string& name, std::span<const float> whole) {
  require_whole_gradients(name);
  state().write_whole_gradient(name, whole);
}

double Engine::loss_of(const Batch& batch) {
  State& s = state();
  pipeline::ScheduleShape shape = s.pipeline.evaluation.shape;
  shape.micros = 1;
  s.layers().clear_side_losses();
  s.run_forward(shape, {.train = false, .batches = {batch}, .losses = s.layers().losses});
  s.layers().fetch_losses();
  s.streams->compute.synchronize();
  const double loss = s.loss_of_place(s.losses({divisor_of_mean(batch.valid_targets)}, {0, 1}));
  return batch.valid_targets > 0 ? loss : std::nan("");
}

StepResult Engine::finish_step(std::span<const optim::Rates> rates) {
  State& s = state();
  CHECK(s.begun, "finish_step: no step was begun");
  const State::Begun begun = *std::exchange(s.begun, std::nullopt);
  require(int64_t(begun.divisors.size()) == s.settings.micros, Exit::usage,
          "gradient_accumulation_steps: wrong number of micro-batches in a step (expected {}, got {})",
          s.settings.micros, begun.divisors.size());
  CHECK(int(rates.size()) == int(s.options.rates_given),
        "finish_step: wrong number of rate groups (got {}, expected {})", rates.size(),
        int(s.options.rates_given));
  s.agree_on_use(begun);
  return s.EngineCore::finish_step([&] { return s.mean_over_ranks(begun.terms) * s.uses; }, rates);
}

// Checks that the ranks used the loss with the same factor, which is known only after the passes.
void Engine::State::agree_on_use(const Begun& step) {
  const double used = step.used.value_or(1) / step.shares;
  uses = ranks.sum(used, "the use of losses") / settings.mesh.size();
  require(std::fabs(uses - used) <= 1e-4 * used, Exit::usage,
          "loss: used another number of times than on other ranks (got {}, mean of all ranks {}); use it in "
          "the same way on all ranks",
          used * step.shares, uses * step.shares);
}

double Engine::State::mean_targets(std::span<const Batch> batches) {
  const MeshPlace& p = settings.place;  // ranks at the same place on the data axis have the same samples
  int64_t all = 0;
  if (p.pipe + p.sequence + p.tensor == 0)
    for (const Batch& batch : batches) all += batch.valid_targets;
  ranks.all_reduce_on_host(Tensor(&all, DType::int64, {1}, MemoryKind::host), "targets of the step");
  if (settings.dry) return 1;
  require(all > 0, Exit::data,
          "step {}: no token of the batch's {} samples has a loss, because the loss mask or the documents "
          "hide every target; remove such samples, or use a larger batch",
          at.step + 1, config.train_batch_size);
  return double(all) / (double(settings.micros) * settings.mesh.data);
}

Work Engine::State::work_of(std::span<const Batch> batches, const std::vector<double>& divisors) {
  Work work{.batches = {batches.begin(), batches.end()}, .losses = layers().losses};
  for (Batch& batch : work.batches) batch.position.seed = options.seed, batch.position.step = at.step;
  const double factor = result.loss_scale * settings.average.before;
  for (const double divisor : divisors) work.scales.push_back(float(factor / divisor));
  return work;
}

std::vector<double> Engine::State::losses(const std::vector<double>& divisors, Range micros) const {
  std::vector<double> terms;
  if (settings.dry) return terms;
  const auto add = [&](const MicroSums& sums) {
    const std::span each(sums.fetched().as<double>(), size_t(sums.fetched().numel()));
    const auto columns = size_t(sums.fetched().dim(1));
    for (size_t i = 0; i < each.size(); ++i)
      if (const size_t micro = i % columns; !intersect(micros, Range{0, 1}.shifted(int64_t(micro))).empty())
        terms.push_back(each[i] / divisors[micro]);
  };
  if (reports_loss()) add(layers().losses);
  if (reports_side_loss()) add(layers().side_losses);
  return terms;
}

double Engine::State::loss_of_place(const std::vector<double>& terms) {
  double loss = std::accumulate(terms.begin(), terms.end(), 0.0);
  for (comm::Communicator* sharers : {ranks.mesh().sequence, ranks.mesh().tensor}) {
    if (sharers->size() == 1) continue;
    sharers->all_reduce(Tensor(&loss, DType::fp64, {1}, MemoryKind::host), streams->comm(),
                        {.what = "the loss of a micro-batch"});
    streams->comm().synchronize();
  }
  return loss;
}

// The forward without dropout, on every rank with its own micro-batch of this number.
std::string Engine::State::first_bad_layer(int64_t micro) {
  if (micro >= int64_t(current.size())) return "";
  const auto all = int(model.layers.size());
  int first = all;
  layers().stage.watch_outputs([&](int layer, const Tensor& output, Stream& on) {
    if (layer < first && has_not_finite(output, on)) first = layer;
  });
  pipeline::ScheduleShape shape = pipeline.evaluation.shape;
  shape.micros = 1;
  layers().clear_side_losses();
  run_forward(shape, {.train = false, .batches = {current[size_t(micro)]}, .losses = layers().losses});
  streams->compute.synchronize();
  layers().stage.watch_outputs(nullptr);
  std::string clause;
  for (const std::string& text : ranks.texts(ranks.world(), first < all ? fmt::format("{}", first) : "")) {
    if (text.empty() || (!clause.empty() && std::stoi(text) >= first)) continue;
    first = std::stoi(text);
    clause = fmt::format("; the first layer with an output that is not finite is {}, layer {} of {}",
                         model.layer_name(first), first + 1, all);
  }
  return clause;
}

Executor Engine::State::trainer() {
  return {layers().stage, links(), streams->compute, streams->comm(), options.trace, graphs.get()};
}

}  // namespace cleave::runtime
