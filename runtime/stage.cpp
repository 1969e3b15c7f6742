#include "runtime/stage.h"

#include <algorithm>

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

std::vector<ParamGradient> dry_grads(const std::vector<UnitSpec>& units, DType dtype, bool* written) {
  std::vector<ParamGradient> grads;
  for (const Tensor& p : dry_params(units, dtype)) grads.push_back({p, written});
  return grads;
}

}  // namespace

Stage::Stage(const Model& model, StageShape shape, ParameterStore& store, int64_t samples,
             const std::function<ZeroPlan(const UnitSpec&)>& plan_of)
    : model_(model),
      shape_(std::move(shape)),
      store_(store),
      samples_(samples),
      frames_(size_t(shape_.frames)) {
  boundaries_.push_back(model_.input(samples));
  for (const auto& l : model_.layers) boundaries_.push_back(l->output(boundaries_.back()));
  add_passes(plan_of);
}

void Stage::allocate(Memory& memory) {
  const auto device = MemoryKind::device;
  if (shape_.last) {
    targets_ = memory.allocate(device, Category::staging, DType::int32, {shape_.batches * rows()}, "targets");
    losses_ = memory.allocate(device, Category::activations, DType::fp32, {rows()}, "losses");
  }
  measure();
  auto bytes = [&](int64_t n, const char* name) {
    return memory.allocate(device, Category::activations, DType::uint8, {n}, name);
  };
  for (int f = 0; f < shape_.frames; ++f) {
    frames_[size_t(f)].memory = bytes(keep_bytes_, "kept activations");
    free_.push_back(f);
  }
  scratch_ = bytes(scratch_arena_.peak_bytes(), "scratch");
  for (Buffer& g : gradients_) g = bytes(gradient_bytes_, "activation gradients");
}

// The layers' own code against dry arenas and a stream that drops all work.
void Stage::measure() {
  Stream discard(Stream::Mode::discard);
  scratch_arena_ = Arena(), keep_bytes_ = gradient_bytes_ = 0;
  for (int c = 0; c < int(shape_.chunks.size()); ++c) measure(c, discard);
}

void Stage::measure(int chunk, Stream& discard) {
  Frame dry;
  start(dry, chunk);
  bool written = false;
  auto params = [&](int l) { return dry_params(layer(chunk, l).units(), model_.dtype); };
  for (int l = 0; l < layers(chunk); ++l) forward_layer(dry, l, params(l), {}, true, discard);
  if (!shape_.split_backward)
    for (const Tensor& x : dry.inputs)
      if (is_float(x.dtype())) gradient_bytes_ = std::max(gradient_bytes_, x.bytes());
  if (has_head(chunk)) {
    const auto units = model_.head->units();
    Grads grads = dry_grads(units, model_.dtype, &written);
    run_head(dry, dry_params(units, model_.dtype), grads, 1, Tensor(nullptr, DType::fp64, {1}), discard);
  }
  for (const BackwardPart part : {BackwardPart::input, BackwardPart::weight})
    for (int l = layers(chunk); l-- > 0;) {
      const bool split = splits(chunk, l);
      if (part == BackwardPart::weight && !split) continue;
      Grads grads = dry_grads(layer(chunk, l).units(), model_.dtype, &written);
      backward_layer(dry, l, params(l), grads, {}, split ? part : BackwardPart::both, discard);
    }
  keep_bytes_ = std::max(keep_bytes_, dry.keep.peak_bytes());
}

Stage::Frame& Stage::frame(int micro, int chunk) {
  for (Frame& f : frames_)
    if (f.micro == micro && f.chunk == chunk) return f;
  fail(Exit::internal, "micro-batch {} is not in chunk {}", micro, chunk);
}

void Stage::start(Frame& f, int chunk) {
  f.chunk = chunk;
  f.keep = f.memory.defined() ? Arena(f.memory) : Arena();
  const auto layers_here = size_t(layers(chunk));
  const TensorSpec& in = boundaries_[size_t(shape_.chunks[size_t(chunk)].begin)];
  f.saved.assign(layers_here, {}), f.for_weight.assign(layers_here, {});
  f.gradients.assign(layers_here + 1, {});
  f.inputs.assign(1, f.keep.take(in.dtype, in.shape));
}

Tensor Stage::open(int micro, int chunk, Stream& writer) {
  CHECK(!free_.empty(), "micro-batch {} in chunk {}: all {} frames are in use", micro, chunk, shape_.frames);
  Frame& f = frames_[size_t(free_.front())];
  free_.pop_front();
  f.micro = micro;
  writer.wait(f.idle), writer.wait(f.held);
  start(f, chunk);
  return f.inputs[0];
}

void Stage::close(int micro, int chunk, Stream& stream) {
  Frame& f = frame(micro, chunk);
  f.idle = stream.record();
  f.micro = f.chunk = -1;
  free_.push_back(int(&f - frames_.data()));
}

void Stage::hold(int micro, int chunk, const Event& until) { frame(micro, chunk).held = until; }

Tensor Stage::targets(int micro) const {
  const int64_t slot = micro % shape_.batches;
  return targets_.tensor().slice({slot * rows(), (slot + 1) * rows()});
}

void Stage::load(int micro, const Batch& batch, Stream& stream) {
  const int64_t inputs = boundaries_[0].shape.numel();
  CHECK(batch.input.numel() == inputs && batch.targets.numel() == rows(),
        "batch of {} inputs and {} targets, the micro-batch has {} and {}", batch.input.numel(),
        batch.targets.numel(), inputs, rows());
  if (positions_.size() <= size_t(micro)) positions_.resize(size_t(micro) + 1);
  positions_[size_t(micro)] = batch.position;
  if (shape_.first) {
    const Tensor x = open(micro, 0, stream);
    if (batch.input.dtype() == x.dtype())
      copy(x, batch.input, stream);
    else
      launch(Cast{.y = x, .x = batch.input}, stream);
  }
  if (shape_.last) copy(targets(micro), batch.targets, stream);
  loaded_ = stream.record();
}

Tensor Stage::output(int micro, int chunk) { return frame(micro, chunk).inputs.back(); }
Tensor Stage::output_gradient(int micro, int chunk) { return gradient(frame(micro, chunk), layers(chunk)); }

Tensor Stage::input_gradient(int micro, int chunk) {
  // The frame is closed unless the backward is split; the gradient is in the buffer of turn 0.
  if (shape_.split_backward) return gradient(frame(micro, chunk), 0);
  const TensorSpec& in = boundaries_[size_t(shape_.chunks[size_t(chunk)].begin)];
  return Tensor(gradients_[0].tensor().raw(), in.dtype, in.shape);
}

// The gradient at boundary l of a chunk is in one of two buffers in turn; a split backward keeps them all
// until the weights' part.
Tensor Stage::gradient(Frame& f, int l) {
  const Tensor& t = f.inputs[size_t(l)];
  if (!shape_.split_backward) return Tensor(gradients_[l & 1].tensor().raw(), t.dtype(), t.shape());
  Tensor& g = f.gradients[size_t(l)];
  if (!g.defined()) g = f.keep.take(t.dtype(), t.shape());
  return g;
}

void Stage::forward_layer(Frame& f, int l, const Params& params, const Position& position, bool train,
                          Stream& stream) {
  const Layer& here = layer(f.chunk, l);
  const Tensor x = f.inputs.back();
  const TensorSpec out = here.output({x.dtype(), x.shape()});
  const Tensor y = f.keep.take(out.dtype, out.shape);
  const int64_t mark = scratch_arena_.mark();
  here.forward({.y = y,
                .x = x,
                .params = params,
                .saved = f.saved[size_t(l)],
                .keep = f.keep,
                .scratch = scratch_arena_,
                .position = position,
                .train = train,
                .stream = stream});
  scratch_arena_.release(mark);
  f.inputs.push_back(y);
}

void Stage::backward_layer(Frame& f, int l, const Params& params, Grads& grads, const Position& position,
                           BackwardPart part, Stream& stream) {
  const bool first = shape_.first && f.chunk == 0 && l == 0;
  const bool wanted = part != BackwardPart::weight && !first;
  const int64_t mark = scratch_arena_.mark();
  layer(f.chunk, l)
      .backward({.dx = wanted ? gradient(f, l) : Tensor(),
                 .dy = gradient(f, l + 1),
                 .x = f.inputs[size_t(l)],
                 .params = params,
                 .grads = grads,
                 .saved = f.saved[size_t(l)],
                 .scratch = scratch_arena_,
                 .position = position,
                 .stream = stream,
                 .part = part,
                 .for_weight = part == BackwardPart::both ? nullptr : &f.for_weight[size_t(l)],
                 .keep = part == BackwardPart::both ? nullptr : &f.keep});
  scratch_arena_.release(mark);
}

void Stage::run_head(Frame& f, const Params& params, Grads& grads, float scale, Tensor loss_sum,
                     Stream& stream) {
  const int64_t mark = scratch_arena_.mark();
  model_.head->run({.losses = losses_,
                    .dx = grads.empty() ? Tensor() : gradient(f, layers(f.chunk)),
                    .x = f.inputs.back(),
                    .targets = targets_.defined() ? targets(std::max(0, f.micro)) : Tensor(),
                    .params = params,
                    .grads = grads,
                    .scale = scale,
                    .scratch = scratch_arena_,
                    .stream = stream});
  scratch_arena_.release(mark);
  launch(Sum{.out = loss_sum, .x = losses_}, stream);
}

void Stage::forward(const Turn& turn, bool train, Stream& stream) {
  Frame& f = frame(turn.micro, turn.chunk);
  const Passes& passes = passes_[size_t(turn.chunk)];
  const bool alone = !train && has_head(turn.chunk);
  store_.begin_pass(alone ? eval_pass_ : turn.fused ? passes.train : passes.forward, turn.last);
  scratch_arena_ = Arena(scratch_);
  visit_ = 0;
  for (int l = 0; l < layers(turn.chunk); ++l, ++visit_) {
    const Params params = store_.acquire(visit_);
    forward_layer(f, l, params, positions_[size_t(turn.micro)], train, stream);
    store_.finish(visit_);
  }
}

void Stage::backward(const Turn& turn, float scale, Tensor loss_sum, Stream& stream) {
  Frame& f = frame(turn.micro, turn.chunk);
  if (!turn.fused) store_.begin_pass(passes_[size_t(turn.chunk)].backward, turn.last), visit_ = 0;
  scratch_arena_ = Arena(scratch_);
  const int n = layers(turn.chunk);
  for (int l = has_head(turn.chunk) ? n : n - 1; l >= 0; --l, ++visit_) {
    const bool split = l < n && splits(turn.chunk, l);
    const Params params = store_.acquire(visit_);
    Grads grads = split ? Grads() : as_gradients(store_.gradients(visit_));
    if (l == n)
      run_head(f, params, grads, scale, loss_sum, stream);
    else
      backward_layer(f, l, params, grads, positions_[size_t(turn.micro)],
                     split ? BackwardPart::input : BackwardPart::both, stream);
    store_.finish(visit_);
  }
  if (!shape_.split_backward) close(turn.micro, turn.chunk, stream);
}

void Stage::backward_weight(const Turn& turn, Stream& stream) {
  Frame& f = frame(turn.micro, turn.chunk);
  store_.begin_pass(passes_[size_t(turn.chunk)].weight, turn.last), visit_ = 0;
  scratch_arena_ = Arena(scratch_);
  for (int l = layers(turn.chunk); l-- > 0;) {
    if (!splits(turn.chunk, l)) continue;
    const Params none = store_.acquire(visit_);
    Grads grads = as_gradients(store_.gradients(visit_));
    backward_layer(f, l, none, grads, positions_[size_t(turn.micro)], BackwardPart::weight, stream);
    store_.finish(visit_++);
  }
  close(turn.micro, turn.chunk, stream);
}

void Stage::head(int micro, Tensor loss_sum, Tensor logits, Stream& stream) {
  Frame& f = frame(micro, int(shape_.chunks.size()) - 1);
  Grads none;
  const Params params = store_.acquire(visit_);
  if (loss_sum.defined()) run_head(f, params, none, 1, loss_sum, stream);
  if (logits.defined()) {
    const int64_t mark = scratch_arena_.mark();
    model_.head->logits(logits, f.inputs.back(), params, scratch_arena_, stream);
    scratch_arena_.release(mark);
  }
  store_.finish(visit_);
}

}  // namespace cleave
