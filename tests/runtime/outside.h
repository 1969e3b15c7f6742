// Forward and backward outside of an engine: the layers of a model in a separate loop with separate memory,
// while an engine keeps their units.
#pragma once
#include <algorithm>
#include <deque>
#include <random>

#include "kernels/elementwise.h"
#include "runtime/unit_engine.h"
#include "tests/runtime/small_models.h"
#include "zero/gradient_shards.h"

namespace cleave::testing {

// Random extra uses of units, different on every rank.
struct Whims {
  std::mt19937 random{1};
  double looks = 0.3;     // probability of acquiring a unit that is not needed now
  double lingers = 0.3;   // probability of keeping a unit until the end of the pass
  double shuffles = 0.5;  // probability of another order of a layer's units

  bool draw(double share) { return std::uniform_real_distribution<>()(random) < share; }
  int of(int count) { return std::uniform_int_distribution<>(0, count - 1)(random); }
};

class OutsideLoop {
 public:
  // skips: returns true if this rank leaves out a layer's unit for a micro-batch: its parameters are then
  // undefined, and its gradient is not given. All arguments must outlive this object.
  using Skips = std::function<bool(const UnitSpec& unit, const Batch& batch)>;
  OutsideLoop(const model::Model& model, runtime::UnitEngine& engine, int64_t samples, Whims whims,
              Skips skips = {})
      : model_(model),
        engine_(engine),
        samples_(samples),
        whims_(std::move(whims)),
        skips_(std::move(skips)) {
    for (const UnitSpec& u : model.units()) names_.push_back(u.name);
  }

  // Runs a step over micro-batches of `samples` samples.
  runtime::StepResult step(const BatchSource& data, int micros, uint64_t seed = 42) {
    int64_t targets = 0;
    std::vector<double> losses;
    engine_.begin_step();
    for (int micro = 0; micro < micros; ++micro) {
      Batch batch = data(micro);
      batch.position.seed = seed, batch.position.step = engine_.step();
      targets = batch.valid_targets;
      engine_.begin_pass(0, micro + 1 == micros);
      losses.push_back(pass(batch, float(engine_.scale() / double(targets))) / double(targets));
      for (const int unit : lingering_) engine_.release(unit);
      lingering_.clear();
      engine_.end_pass();
    }
    return engine_.finish_step(losses);
  }

 private:
  struct Held {
    std::vector<int> units;
    std::vector<Tensor> params;
    std::vector<model::ParamGradient> grads;
  };
  struct Call {  // of a layer, from its forward to its backward
    Buffer memory;
    Arena keep;
    model::Saved saved;
  };

  int index_of(const std::string& name) const {
    return int(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }
  std::vector<size_t> order(size_t count) {
    std::vector<size_t> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = i;
    if (whims_.draw(whims_.shuffles)) std::shuffle(out.begin(), out.end(), whims_.random);
    return out;
  }
  void look_around() {
    while (whims_.draw(whims_.looks)) {
      const int unit = whims_.of(int(names_.size()));
      engine_.acquire(unit);
      if (whims_.draw(whims_.lingers))
        lingering_.push_back(unit);
      else
        engine_.release(unit);
    }
  }
  Held hold(const std::vector<UnitSpec>& units, const Batch& batch, bool backward) {
    Held held;
    std::vector<std::vector<Tensor>> params(units.size());
    std::vector<std::vector<model::ParamGradient>> grads(units.size());
    for (size_t u = 0; u < units.size(); ++u)
      params[u].resize(units[u].params.size()), grads[u].resize(units[u].params.size());
    for (const size_t u : order(units.size())) {
      look_around();
      if (skips_ && skips_(units[u], batch)) continue;
      const int unit = index_of(units[u].name);
      params[u] = engine_.acquire(unit);
      held.units.push_back(unit);
      if (!backward) continue;
      grads[u].clear();
      for (const zero::GradientSlot& s : engine_.gradients(unit)) grads[u].push_back({s.tensor, s.written});
    }
    for (size_t u = 0; u < units.size(); ++u) {
      held.params.insert(held.params.end(), params[u].begin(), params[u].end());
      held.grads.insert(held.grads.end(), grads[u].begin(), grads[u].end());
    }
    return held;
  }
  // A unit is complete after the last layer in the backward that uses it.
  void let_go(const Held& held, bool backward, int l) {
    for (const size_t index : order(names_.size())) {
      const int unit = int(index);
      if (std::find(held.units.begin(), held.units.end(), unit) == held.units.end()) continue;
      engine_.release(unit);
      if (!backward) continue;
      engine_.give(unit);
      const auto uses = [&](const auto& layer) {
        for (const UnitSpec& u : layer->units())
          if (index_of(u.name) == unit) return true;
        return false;
      };
      if (std::none_of(model_.layers.begin(), model_.layers.begin() + l, uses)) engine_.complete(unit);
    }
  }
  Buffer memory(DType type, const Shape& shape) {
    return memory_.allocate(MemoryKind::device, Category::activations, type, shape, "outside");
  }
  Buffer room() { return memory(DType::uint8, {1 << 18}); }

  double pass(const Batch& batch, float scale) {
    Stream& stream = engine_.stream();
    std::vector<Buffer> inputs;
    inputs.push_back(memory(model_.input(samples_).dtype, model_.input(samples_).shape));
    if (batch.input.dtype() == inputs[0].tensor().dtype())
      stream.enqueue(
          [to = inputs[0].tensor(), from = batch.input] { std::memcpy(to.raw(), from.raw(), from.bytes()); });
    else
      kernels::launch(kernels::Cast{.y = inputs[0], .x = batch.input}, stream);
    stream.synchronize();
    std::deque<Call> calls;
    model::TensorSpec spec = model_.input(samples_);
    for (size_t l = 0; l < model_.layers.size(); ++l) {
      const model::Layer& layer = *model_.layers[l];
      spec = layer.output(spec);
      inputs.push_back(memory(spec.dtype, spec.shape));
      Call& call = calls.emplace_back(Call{.memory = room(), .keep = {}, .saved = {}});
      call.keep = Arena(call.memory);
      const Buffer scratch_memory = room();
      Arena scratch(scratch_memory);
      const Held held = hold(layer.units(), batch, false);
      layer.forward({.y = inputs[l + 1],
                     .x = inputs[l],
                     .params = held.params,
                     .saved = call.saved,
                     .keep = call.keep,
                     .scratch = scratch,
                     .position = batch.position,
                     .stream = stream,
                     .constants = model_.constants,
                     .documents = {}});
      let_go(held, false, int(l));
      stream.synchronize();
    }
    return backward(batch, scale, inputs, calls);
  }

  double backward(const Batch& batch, float scale, const std::vector<Buffer>& inputs,
                  std::deque<Call>& calls) {
    Stream& stream = engine_.stream();
    const int layers = int(model_.layers.size());
    const auto like = [&](const Buffer& b) { return memory(b.tensor().dtype(), b.tensor().shape()); };
    const Buffer losses = memory(DType::fp32, {batch.targets.numel()}), sum = memory(DType::fp64, {1});
    Buffer dy = like(inputs.back());
    {
      const Buffer scratch_memory = room();
      Arena scratch(scratch_memory);
      Held held = hold(model_.head->units(), batch, true);
      model_.head->run({.losses = losses,
                        .dx = dy,
                        .x = inputs.back(),
                        .targets = batch.targets,
                        .params = held.params,
                        .grads = held.grads,
                        .scale = scale,
                        .scratch = scratch,
                        .stream = stream});
      kernels::launch(kernels::Sum{.out = sum, .x = losses}, stream);
      let_go(held, true, layers);
      stream.synchronize();
    }
    for (int l = layers; l-- > 0;) {
      const Buffer scratch_memory = room();
      Arena scratch(scratch_memory);
      Buffer dx = l > 0 ? like(inputs[size_t(l)]) : Buffer{};
      Held held = hold(model_.layers[size_t(l)]->units(), batch, true);
      model_.layers[size_t(l)]->backward({.dx = l > 0 ? dx.tensor() : Tensor(),
                                          .dy = dy,
                                          .x = inputs[size_t(l)],
                                          .params = held.params,
                                          .grads = held.grads,
                                          .saved = calls[size_t(l)].saved,
                                          .scratch = scratch,
                                          .position = batch.position,
                                          .stream = stream,
                                          .constants = model_.constants});
      let_go(held, true, l);
      stream.synchronize();
      if (l > 0) dy = std::move(dx);
    }
    return sum.tensor().as<double>()[0];
  }

  const model::Model& model_;
  runtime::UnitEngine& engine_;
  int64_t samples_;
  Whims whims_;
  Skips skips_;
  std::vector<std::string> names_;
  std::vector<int> lingering_;
  Memory memory_;
};

inline Weights weights_of(runtime::UnitEngine& engine, const model::Model& model) {
  Weights w;
  for (const UnitSpec& u : model.units())
    for (const ParamSpec& p : u.params) w[p.name] = engine.parameter(p.name);
  return w;
}

}  // namespace cleave::testing
