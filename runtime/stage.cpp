#include "runtime/stage.h"

#include <map>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave {
namespace {

std::vector<ParamGradient> as_gradients(const std::vector<GradientSlot>& slots) {
  std::vector<ParamGradient> grads;
  for (const GradientSlot& s : slots) grads.push_back({s.tensor, s.written});
  return grads;
}

// Views of the right shapes without memory, for a dry run.
std::vector<Tensor> dry_params(const std::vector<UnitSpec>& units, DType dtype) {
  std::vector<Tensor> params;
  for (const UnitSpec& u : units)
    for (const ParamSpec& p : u.params) {
      Shape shape;
      for (int64_t d : p.shape) shape.dims[size_t(shape.rank++)] = d;
      params.emplace_back(nullptr, dtype, shape);
    }
  return params;
}

}  // namespace

Stage::Stage(const Model& model, ParameterStore& store, int64_t samples,
             const std::function<ZeroPlan(const UnitSpec&)>& plan_of)
    : model_(model), store_(store), samples_(samples) {
  std::map<std::string, int> known;
  auto indices = [&](const std::vector<UnitSpec>& units) {
    std::vector<int> out;
    for (const UnitSpec& u : units) {
      const auto [at, added] = known.try_emplace(u.name, 0);
      if (added) at->second = store_.add_unit(u, plan_of(u));
      out.push_back(at->second);
    }
    return out;
  };
  std::vector<ParameterStore::Visit> forward, train;
  for (const auto& layer : model_.layers) forward.push_back({indices(layer->units()), false});
  const std::vector<int> head = indices(model_.head->units());
  train = forward;
  train.push_back({head, true});
  for (size_t l = forward.size(); l-- > 0;) train.push_back({forward[l].units, true});
  forward.push_back({head, false});
  train_pass_ = store_.add_pass(std::move(train));
  eval_pass_ = store_.add_pass(std::move(forward));
}

void Stage::allocate(Memory& memory) {
  const auto device = MemoryKind::device;
  const TensorSpec input = model_.input(samples_);
  const int64_t rows = samples_ * model_.rows_per_sample;
  input_ = memory.allocate(device, Category::staging, input.dtype, input.shape, "input");
  targets_ = memory.allocate(device, Category::staging, DType::int32, {rows}, "targets");
  losses_ = memory.allocate(device, Category::activations, DType::fp32, {rows}, "losses");
  measure();
  auto bytes = [&](int64_t n, const char* name) {
    return memory.allocate(device, Category::activations, DType::uint8, {n}, name);
  };
  keep_ = bytes(frame_.keep.peak_bytes(), "kept activations");
  scratch_ = bytes(scratch_arena_.peak_bytes(), "scratch");
  for (Buffer& g : gradients_) g = bytes(gradient_bytes_, "activation gradients");
}

// The layers' own code against dry arenas and a stream that drops all work.
void Stage::measure() {
  Stream discard(Stream::Mode::discard);
  auto grads_of = [&](const std::vector<UnitSpec>& units, bool* written) {
    Grads grads;
    for (const Tensor& p : dry_params(units, model_.dtype)) grads.push_back({p, written});
    return grads;
  };
  frame_.keep = Arena(), scratch_arena_ = Arena(), gradient_bytes_ = 0;
  frame_.inputs.assign(1, input_), frame_.saved.assign(model_.layers.size(), {});
  bool written = false;
  for (int l = 0; l < layers(); ++l)
    forward_layer(l, dry_params(model_.layers[size_t(l)]->units(), model_.dtype), {}, true, discard);
  for (const Tensor& x : frame_.inputs)
    if (is_float(x.dtype())) gradient_bytes_ = std::max(gradient_bytes_, x.bytes());
  Grads head = grads_of(model_.head->units(), &written);
  run_head(dry_params(model_.head->units(), model_.dtype), head, 1, Tensor(nullptr, DType::fp64, {1}),
           discard);
  for (int l = layers(); l-- > 0;) {
    Grads grads = grads_of(model_.layers[size_t(l)]->units(), &written);
    backward_layer(l, dry_params(model_.layers[size_t(l)]->units(), model_.dtype), grads, {}, discard);
  }
}

void Stage::load(const Batch& batch, Stream& stream) {
  CHECK(batch.input.numel() == input_.tensor().numel() && batch.targets.numel() == targets_.tensor().numel(),
        "batch of {} inputs and {} targets, the micro-batch has {} and {}", batch.input.numel(),
        batch.targets.numel(), input_.tensor().numel(), targets_.tensor().numel());
  if (batch.input.dtype() == input_.tensor().dtype())
    copy(input_, batch.input, stream);
  else
    launch(Cast{.y = input_, .x = batch.input}, stream);
  copy(targets_, batch.targets, stream);
  loaded_ = stream.record();
  frame_.keep = Arena(keep_), scratch_arena_ = Arena(scratch_);
  frame_.saved.assign(model_.layers.size(), {});
  frame_.inputs.assign(1, input_);
}

void Stage::forward_layer(int l, const Params& params, const Position& position, bool train, Stream& stream) {
  const Layer& layer = *model_.layers[size_t(l)];
  const Tensor x = frame_.inputs.back();
  const TensorSpec out = layer.output({x.dtype(), x.shape()});
  const Tensor y = frame_.keep.take(out.dtype, out.shape);
  const int64_t mark = scratch_arena_.mark();
  layer.forward({.y = y,
                 .x = x,
                 .params = params,
                 .saved = frame_.saved[size_t(l)],
                 .keep = frame_.keep,
                 .scratch = scratch_arena_,
                 .position = position,
                 .train = train,
                 .stream = stream});
  scratch_arena_.release(mark);
  frame_.inputs.push_back(y);
}

// The gradient of layer l's input goes into one of two buffers in turn; its output's gradient is in the
// other.
void Stage::backward_layer(int l, const Params& params, Grads& grads, const Position& position,
                           Stream& stream) {
  const Tensor x = frame_.inputs[size_t(l)], y = frame_.inputs[size_t(l) + 1];
  auto gradient_of = [&](const Tensor& t, int turn) {
    return Tensor(gradients_[turn & 1].tensor().raw(), t.dtype(), t.shape());
  };
  const int64_t mark = scratch_arena_.mark();
  model_.layers[size_t(l)]->backward({.dx = l == 0 ? Tensor() : gradient_of(x, l),
                                      .dy = gradient_of(y, l + 1),
                                      .x = x,
                                      .params = params,
                                      .grads = grads,
                                      .saved = frame_.saved[size_t(l)],
                                      .scratch = scratch_arena_,
                                      .position = position,
                                      .stream = stream});
  scratch_arena_.release(mark);
}

void Stage::run_head(const Params& params, Grads& grads, float scale, Tensor loss_sum, Stream& stream) {
  const Tensor x = frame_.inputs.back();
  const int64_t mark = scratch_arena_.mark();
  model_.head->run(
      {.losses = losses_,
       .dx = grads.empty() ? Tensor() : Tensor(gradients_[layers() & 1].tensor().raw(), x.dtype(), x.shape()),
       .x = x,
       .targets = targets_,
       .params = params,
       .grads = grads,
       .scale = scale,
       .scratch = scratch_arena_,
       .stream = stream});
  scratch_arena_.release(mark);
  launch(Sum{.out = loss_sum, .x = losses_}, stream);
}

void Stage::run_forward(const Batch& batch, bool train, Stream& stream) {
  load(batch, stream);
  for (int l = 0; l < layers(); ++l) {
    const Params params = store_.acquire(l);
    forward_layer(l, params, batch.position, train, stream);
    store_.finish(l);
  }
}

void Stage::train(const Batch& batch, float scale, bool last_micro, Tensor loss_sum, Stream& stream) {
  store_.begin_pass(train_pass_, last_micro);
  run_forward(batch, true, stream);
  int visit = layers();
  for (int l = layers(); l >= 0; --l, ++visit) {  // the head, then the layers backwards
    const Params params = store_.acquire(visit);
    Grads grads = as_gradients(store_.gradients(visit));
    if (l == layers())
      run_head(params, grads, scale, loss_sum, stream);
    else
      backward_layer(l, params, grads, batch.position, stream);
    store_.finish(visit);
  }
}

void Stage::evaluate(const Batch& batch, Tensor loss_sum, Stream& stream) {
  store_.begin_pass(eval_pass_, false);
  run_forward(batch, false, stream);
  Grads none;
  run_head(store_.acquire(layers()), none, 1, loss_sum, stream);
  store_.finish(layers());
}

void Stage::predict(const Batch& batch, Tensor logits, Stream& stream) {
  store_.begin_pass(eval_pass_, false);
  run_forward(batch, false, stream);
  const Params params = store_.acquire(layers());
  model_.head->logits(logits, frame_.inputs.back(), params, stream);
  store_.finish(layers());
}

}  // namespace cleave
