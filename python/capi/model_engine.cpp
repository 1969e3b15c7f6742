#include "python/capi/model_engine.h"

#include <algorithm>

#include "comm/communicator.h"
#include "python/capi/call.h"

namespace cleave::capi {
namespace {

// Transposes [rows, columns], in squares small enough for the first-level cache on both sides.
std::vector<float> turned(std::span<const float> matrix, int64_t rows, int64_t columns) {
  constexpr int64_t kSide = 32;
  std::vector<float> out(matrix.size());
  for (int64_t r0 = 0; r0 < rows; r0 += kSide)
    for (int64_t c0 = 0; c0 < columns; c0 += kSide)
      for (int64_t c = c0; c < std::min(columns, c0 + kSide); ++c)
        for (int64_t r = r0; r < std::min(rows, r0 + kSide); ++r)
          out[size_t(c * rows + r)] = matrix[size_t(r * columns + c)];
  return out;
}

// Samples for the engine: the target of each position is the label of the next one.
class Shifted {
 public:
  Shifted(const cleave_samples& of, const runtime::TwinModel& twin, int64_t samples)
      : tokens_(size_t(samples * twin.length)), targets_(tokens_.size(), kIgnoredTarget) {
    require(0 < of.samples && of.samples <= samples && 0 < of.length && of.length <= twin.length, Exit::usage,
            "micro-batch: too large (got {} samples with {} tokens, expected at most {} samples with {} "
            "tokens); raise train_micro_batch_size_per_gpu or cleave.sequence_length",
            of.samples, of.length, samples, twin.length);
    given(of.tokens, "tokens");
    for (int64_t s = 0; s < of.samples; ++s) read(of, twin, s);
  }
  Batch batch() const { return batch_of(tokens_, targets_); }

 private:
  void read(const cleave_samples& of, const runtime::TwinModel& twin, int64_t s) {
    for (int64_t i = 0; i < of.length; ++i) {
      const int64_t from = s * of.length + i, to = s * twin.length + i;
      tokens_[size_t(to)] = id(of.tokens[from], twin, "token", s, i);
      const bool padding = of.mask && of.mask[from] == 0;
      require(!of.mask || padding || i == 0 || of.mask[from - 1] != 0, Exit::usage,
              "attention_mask: sample {} has padding before its token {}; pad on the right "
              "(padding_side=\"right\")",
              s, i);
      const int64_t label = of.labels ? of.labels[from] : kIgnoredTarget;
      if (label == kIgnoredTarget) continue;
      require(
          !padding, Exit::usage,
          "labels: sample {} has {} at position {}, which attention_mask marks as padding; use -100 there", s,
          label, i);
      if (i > 0) targets_[size_t(to - 1)] = id(label, twin, "label", s, i);
    }
  }
  static int32_t id(int64_t value, const runtime::TwinModel& twin, const char* what, int64_t sample,
                    int64_t position) {
    require(0 <= value && value < twin.model.vocab, Exit::data,
            "sample {} has the {} {} at position {}; {} has {} of them", sample, what, value, position,
            twin.name, twin.model.vocab);
    return int32_t(value);
  }

  std::vector<int32_t> tokens_, targets_;
};

ModelEngine& model_engine(cleave_engine& engine) {
  auto* its = dynamic_cast<ModelEngine*>(&engine);
  CHECK(its, "the engine is driven by units: it computes no model");
  return *its;
}

}  // namespace

const std::vector<std::string>& ModelEngine::names_of(int unit) const {
  CHECK(0 <= unit && unit < int(twin.units.size()), "unit {} of {}", unit, twin.units.size());
  return twin.units[size_t(unit)];
}

void ModelEngine::begin_step(int micros) {
  const int64_t has = twin.config.gradient_accumulation_steps;
  require(micros == 0 || micros == has, Exit::usage,
          "gradient_accumulation_steps: wrong number of micro-batches in a step (got {}, expected {}); set "
          "the key to that number",
          micros, has);
  micros_ = 0;
  engine->begin_step();
}

double ModelEngine::train_micro_batch(const Batch& batch, double items) {
  const double loss = engine->train_micro_batch(batch, items);
  ++micros_, items_ = items;
  return loss;
}

runtime::StepResult ModelEngine::finish_step(std::span<const double>, std::span<const optim::Rates> rates) {
  const int64_t came = micros_, wanted = twin.config.gradient_accumulation_steps;
  const std::vector<int32_t> tokens(size_t(engine->samples_per_micro() * twin.length));
  const std::vector<int32_t> no_targets(tokens.size(), kIgnoredTarget);
  while (0 < micros_ && micros_ < wanted) train_micro_batch(batch_of(tokens, no_targets), items_);
  runtime::StepResult result = engine->finish_step(rates);
  // The loss is the mean over the micro-batches that were given, as for callers that compute.
  if (items_ == 0) result.loss *= double(wanted) / double(came);
  return result;
}

// Every rank declares the whole model, so the first rank has the values.
void ModelEngine::take_first(int, Tensor value) {
  Stream host;
  world_.broadcast(value, 0, host, {.what = "a value of the first rank"});
  host.synchronize();
}

bool ModelEngine::gathers(int unit) {
  for (const std::string& name : names_of(unit))
    if (!engine->resident(twin.known(name).name).defined()) return true;
  return false;
}

std::vector<void*> ModelEngine::acquire(int unit) {
  std::vector<std::string> names;
  for (const std::string& name : names_of(unit)) names.push_back(twin.known(name).name);
  const bool gathers = this->gathers(unit);
  char* at =
      gathers ? static_cast<char*>((gathered_[unit] = engine->gathered(names)).tensor().raw()) : nullptr;
  std::vector<void*> out;
  for (const std::string& name : names_of(unit)) {
    const runtime::TwinModel::Parameter& p = twin.known(name);
    out.push_back(gathers ? at : engine->resident(p.name).raw());
    if (p.input_first)
      turned_.insert(out.back());
    else
      turned_.erase(out.back());
    if (gathers) at += checkpoint::numel_of(p.shape) * size_of(runtime::model_dtype(twin.config));
  }
  return out;
}

std::vector<float> ModelEngine::gradient(const std::string& name) {
  const runtime::TwinModel::Parameter& p = twin.known(name);
  std::vector<float> whole = engine->gradient(p.name);
  return p.input_first ? turned(whole, p.shape[0], p.shape[1]) : whole;
}

void ModelEngine::write_gradient(const std::string& name, std::span<const float> whole) {
  const runtime::TwinModel::Parameter& p = twin.known(name);
  if (!p.input_first) return engine->write_gradient(p.name, whole);
  CHECK(int64_t(whole.size()) == p.shape[0] * p.shape[1], "{} values of {}", whole.size(), name);
  engine->write_gradient(p.name, turned(whole, p.shape[1], p.shape[0]));
}

std::map<std::string, std::vector<int64_t>> ModelEngine::shapes() {
  std::map<std::string, std::vector<int64_t>> out;
  for (const auto& [name, parameter] : twin.parameters) out[name] = parameter.its_shape();
  return out;
}

std::vector<float> ModelEngine::parameter(const std::string& name, int kind) {
  const runtime::TwinModel::Parameter& p = twin.known(name);
  std::vector<float> whole = engine->parameter(p.name, kind);
  return p.input_first ? turned(whole, p.shape[0], p.shape[1]) : whole;
}

std::vector<float> ModelEngine::own_master(const std::string& name) {
  const runtime::TwinModel::Parameter& p = twin.known(name);
  std::vector<float> whole = engine->own_master(p.name);
  return p.input_first ? turned(whole, p.shape[0], p.shape[1]) : whole;
}

void ModelEngine::write_parameter(const std::string& name, std::span<float> whole, int kind) {
  const runtime::TwinModel::Parameter& p = twin.known(name);
  if (!p.input_first) return engine->write_parameter(p.name, whole, kind);
  CHECK(int64_t(whole.size()) == p.shape[0] * p.shape[1], "{} values of {}", whole.size(), name);
  std::vector<float> lying = turned(whole, p.shape[1], p.shape[0]);
  engine->write_parameter(p.name, lying, kind);
}

}  // namespace cleave::capi

using namespace cleave;
using capi::call, capi::given;

int cleave_train_micro_batch(cleave_engine* engine, const cleave_samples* samples, double* loss) {
  return call(engine, [&](cleave_engine& its) {
    capi::ModelEngine& e = capi::model_engine(its);
    const capi::Shifted shifted(given(samples, "samples"), e.twin, e.engine->samples_per_micro());
    given(loss, "loss") = e.train_micro_batch(shifted.batch(), samples->items);
  });
}

int cleave_use_loss(cleave_engine* engine, double times) {
  return call(engine, [&](cleave_engine& e) { capi::model_engine(e).engine->use_loss(times); });
}

int cleave_loss(cleave_engine* engine, const cleave_samples* samples, double* loss) {
  return call(engine, [&](cleave_engine& its) {
    capi::ModelEngine& e = capi::model_engine(its);
    const capi::Shifted shifted(given(samples, "samples"), e.twin, e.engine->samples_per_micro());
    const Batch batch = shifted.batch();
    const double mean = e.engine->loss_of(batch), labels = double(batch.valid_targets);
    given(loss, "loss") = samples->items > 0 ? (labels > 0 ? mean * labels / samples->items : 0) : mean;
  });
}

int cleave_logits(cleave_engine* engine, const cleave_samples* samples, float* logits) {
  return call(engine, [&](cleave_engine& its) {
    capi::ModelEngine& e = capi::model_engine(its);
    const cleave_samples& of = given(samples, "samples");
    const capi::Shifted shifted(of, e.twin, e.engine->samples_per_micro());
    const std::vector<float> all = e.engine->predict(shifted.batch());
    const int64_t vocab = e.twin.model.vocab;
    for (int64_t s = 0; s < of.samples; ++s)
      std::copy_n(all.data() + s * e.twin.length * vocab, of.length * vocab,
                  &given(logits, "logits") + s * of.length * vocab);
  });
}
