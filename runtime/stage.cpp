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

}  // namespace

Stage::Stage(const Model& model, StageShape shape, ParameterStore& store, int64_t samples,
             const TensorAxis& axis, const std::function<ZeroPlan(const UnitSpec&)>& plan_of)
    : model_(model),
      shape_(std::move(shape)),
      store_(store),
      samples_(samples),
      frames_(size_t(shape_.frames)),
      away_inputs_(shape_.recompute.partition ? AwayInputs(axis) : AwayInputs()) {
  require(
      !(shape_.recompute.partition && model_.cuts_boundaries), Exit::usage,
      "activation_checkpointing.partition_activations: the ranks of {} have different inputs of a layer, so "
      "there is nothing to partition; remove the key",
      model_.name);
  boundaries_.push_back(model_.input(samples));
  for (const auto& l : model_.layers) boundaries_.push_back(l->output(boundaries_.back()));
  add_passes(plan_of);
}

TraceEvent Stage::shown(const char* what, const Frame& f, int l) const {
  if (!trace_ || !trace_->on()) return {};
  const int layer = int(shape_.chunks[size_t(f.chunk)].begin) + l;
  return {.name = model_.layer_name(layer), .category = what, .layer = layer};
}

Tensor Stage::targets(int micro) const {
  const int64_t slot = micro % shape_.batches;
  return targets_.tensor().slice({slot * rows(), (slot + 1) * rows()});
}

void Stage::take_part(Tensor to, Tensor whole, Stream& stream) const {
  const int64_t runs = model_.parts == 1 ? 1 : samples_, run = to.numel() / runs;
  for (int64_t r = 0; r < runs; ++r) {
    const Tensor mine = to.slice({r * run, (r + 1) * run});
    const Tensor from = whole.slice(Range{0, run}.shifted((r * model_.parts + model_.part) * run));
    if (from.dtype() == mine.dtype())
      copy(mine, from, stream);
    else
      launch(Cast{.y = mine, .x = from}, stream);
  }
}

void Stage::load(int micro, const Batch& batch, Stream& stream) {
  const int64_t inputs = boundaries_[0].shape.numel() * model_.parts, targets_of = rows() * model_.parts;
  CHECK(batch.input.numel() == inputs && batch.targets.numel() == targets_of,
        "batch of {} inputs and {} targets, the micro-batch has {} and {}", batch.input.numel(),
        batch.targets.numel(), inputs, targets_of);
  if (positions_.size() <= size_t(micro)) positions_.resize(size_t(micro) + 1);
  positions_[size_t(micro)] = batch.position;
  if (shape_.first) {
    const Tensor x = open(micro, 0, stream);
    take_part(x, batch.input, stream);
  }
  if (shape_.last) take_part(targets(micro), batch.targets, stream);
  loaded_ = stream.record();
}

Tensor Stage::output(int micro, int chunk) { return frame(micro, chunk).inputs.back(); }
Tensor Stage::output_gradient(int micro, int chunk) { return gradient(frame(micro, chunk), layers(chunk)); }

Tensor Stage::input_gradient(int micro, int chunk) {
  // The frame is closed unless the backward is split; the gradient is in the buffer of turn 0.
  if (shape_.split_backward) return gradient(frame(micro, chunk), 0);
  return passing(chunk, 0);
}

Tensor Stage::passing(int chunk, int l) const {
  const TensorSpec& t = boundary(chunk, l);
  return Tensor(passing_[l & 1].tensor().raw(), t.dtype, t.shape);
}

// The gradient at boundary l of a chunk is in one of two buffers in turn; a split backward keeps them all
// until the weights' part.
Tensor Stage::gradient(Frame& f, int l) {
  if (!shape_.split_backward) return passing(f.chunk, l);
  const TensorSpec& t = boundary(f.chunk, l);
  Tensor& g = f.gradients[size_t(l)];
  if (!g.defined()) g = until_backward(f).take(t.dtype, t.shape);
  return g;
}

// Of layer l. With recomputation an output that the frame keeps is written there the first time and nowhere
// the second; the others live as long as what the layers of their group make.
Tensor Stage::take_output(Frame& f, int l, Run run) {
  const TensorSpec& out = boundary(f.chunk, l + 1);
  if (!shape_.trains && l + 1 < layers(f.chunk)) return f.inputs[size_t(l) + 1] = passing(f.chunk, l + 1);
  const bool kept = shape_.recompute.keeps(l + 1, layers(f.chunk));
  if (kept && run.again) return scratch_arena_.take(out.dtype, out.shape);
  if (away(f.chunk, l + 1))
    return f.inputs[size_t(l) + 1] =
               away_inputs_.block((l + 1) / int(shape_.recompute.interval), out.dtype, out.shape);
  Arena& arena = kept ? f.keep : run.again || run.alive ? until_backward(f) : group_arena_;
  return f.inputs[size_t(l) + 1] = arena.take(out.dtype, out.shape);
}

void Stage::forward_layer(Frame& f, int l, const Params& params, const Position& position, Run run,
                          Stream& stream) {
  const Recompute& recompute = shape_.recompute;
  if (recompute.again() && recompute.keeps(l, layers(f.chunk))) group_arena_.release(0);
  const int64_t scratch = scratch_arena_.mark();
  const bool leaves = !run.again && away(f.chunk, l + 1);
  const int next = leaves ? (l + 1) / int(recompute.interval) : 0;  // the group that y is the input of
  if (leaves) away_inputs_.wait_until_left(next, stream);
  const Tensor y = take_output(f, l, run);
  const bool dropped = !shape_.trains || (recompute.again() && !run.again && !run.alive);
  Arena& keep = dropped ? group_arena_ : until_backward(f);
  const int64_t kept = keep.mark();
  f.saved[size_t(l)] = {};
  const TraceSpan seen(trace_, stream, shown(run.again ? "recompute" : "forward", f, l));
  layer(f.chunk, l)
      .forward({.y = y,
                .x = f.inputs[size_t(l)],
                .params = params,
                .saved = f.saved[size_t(l)],
                .keep = keep,
                .scratch = scratch_arena_,
                .position = position,
                .train = run.train,
                .stream = stream,
                .lean = recompute.lean,
                .constants = constants_});
  if (leaves && run.train) {
    f.inputs_home[size_t(next)] = f.home.take(y.dtype(), {away_inputs_.numel_at_home(y.numel())});
    away_inputs_.send(next, f.inputs_home[size_t(next)], y, stream);
  }
  if (dropped) keep.release(kept);
  scratch_arena_.release(scratch);
}

void Stage::bring_inputs(Frame& f, int l, Stream& stream) {
  if (!shape_.recompute.away()) return;
  const int interval = int(std::min<int64_t>(shape_.recompute.interval, layers(f.chunk)));
  const int group = int(ceil_div(l + 1, interval)) - 1;
  while (f.fetched > std::max(1, group - 1)) {
    const int g = --f.fetched;
    const TensorSpec& x = boundary(f.chunk, g * interval);
    // The weights' part needs it as well.
    f.inputs[size_t(g * interval)] = shape_.split_backward ? until_backward(f).take(x.dtype, x.shape)
                                                           : away_inputs_.block(g, x.dtype, x.shape);
    away_inputs_.fetch(g, f.inputs[size_t(g * interval)], f.inputs_home[size_t(g)], stream);
  }
  away_inputs_.wait_until_back(group, stream);
  if (group > 0 && group < f.gathered) away_inputs_.gather(f.inputs[size_t(group * interval)], stream);
  f.gathered = std::min(f.gathered, group);
}

void Stage::backward_layer(Frame& f, int l, const Params& params, Grads& grads, const Position& position,
                           BackwardPart part, Stream& stream) {
  const bool first = shape_.first && f.chunk == 0 && l == 0;
  const bool wanted = part != BackwardPart::weight && !first;
  const TraceSpan seen(trace_, stream, shown("backward", f, l));
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
                 .keep = part == BackwardPart::both ? nullptr : &until_backward(f),
                 .lean = shape_.recompute.lean,
                 .constants = constants_});
  scratch_arena_.release(mark);
}

void Stage::run_head(Frame& f, const Params& params, Grads& grads, float scale, Tensor loss_sum,
                     Stream& stream) {
  const TraceSpan seen(trace_, stream, shown(grads.empty() ? "forward" : "backward", f, layers(f.chunk)));
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
  scratch_arena_ = Arena(scratch_), group_arena_ = Arena(group_);
  visit_ = 0;
  for (int l = 0; l < layers(turn.chunk); ++l, ++visit_) {
    const Params params = store_.acquire(visit_);
    const bool alive = turn.fused && may_stay() && shape_.recompute.in_last_group(l, layers(turn.chunk));
    forward_layer(f, l, params, positions_[size_t(turn.micro)], {.train = train, .alive = alive}, stream);
    store_.finish(visit_);
  }
}

void Stage::backward(const Turn& turn, float scale, Tensor loss_sum, Stream& stream) {
  Frame& f = frame(turn.micro, turn.chunk);
  const Passes& passes = passes_[size_t(turn.chunk)];
  const Position& position = positions_[size_t(turn.micro)];
  if (!turn.fused) store_.begin_pass(passes.backward, turn.last), visit_ = 0;
  scratch_arena_ = Arena(scratch_), group_arena_ = Arena(group_);
  f.fetched = f.gathered = groups(turn.chunk) - (turn.fused && may_stay() ? 1 : 0);
  for (const Stop& stop : turn.fused ? passes.fused : passes.apart) {
    bring_inputs(f, stop.layer, stream);
    const Params params = store_.acquire(visit_);
    const bool head = stop.layer == layers(turn.chunk), split = !head && splits(turn.chunk, stop.layer);
    Grads grads = split || !stop.backward ? Grads() : as_gradients(store_.gradients(visit_));
    if (stop.again) forward_layer(f, stop.layer, params, position, {.again = true}, stream);
    if (head)
      run_head(f, params, grads, scale, loss_sum, stream);
    else if (stop.backward)
      backward_layer(f, stop.layer, params, grads, position, split ? BackwardPart::input : BackwardPart::both,
                     stream);
    store_.finish(visit_++);
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

void Stage::head(int micro, Tensor loss_sum, Tensor logits, Range rows, Stream& stream) {
  Frame& f = frame(micro, int(shape_.chunks.size()) - 1);
  Grads none;
  const Params params = store_.acquire(visit_);
  if (loss_sum.defined()) run_head(f, params, none, 1, loss_sum, stream);
  if (logits.defined()) {
    const int64_t mark = scratch_arena_.mark();
    model_.head->logits(logits, f.inputs.back(), rows, params, scratch_arena_, stream);
    scratch_arena_.release(mark);
  }
  store_.finish(visit_);
}

}  // namespace cleave
