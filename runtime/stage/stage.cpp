// Forwards and backwards of a stage.
#include "runtime/stage/stage.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "device/work_log.h"
#include "kernels/elementwise.h"

namespace cleave::runtime {
namespace {

std::vector<model::ParamGradient> as_gradients(const std::vector<zero::GradientSlot>& slots) {
  std::vector<model::ParamGradient> grads;
  for (const zero::GradientSlot& s : slots) grads.push_back({s.tensor, s.written});
  return grads;
}

std::string words_of(const model::TensorSpec& spec) {
  return fmt::format("{} [{}]", name_of(spec.dtype),
                     fmt::join(spec.shape.dims.begin(), spec.shape.dims.begin() + spec.shape.rank, ", "));
}

}  // namespace

void Stage::fail_in_layer(const char* pass, const Frame& f, int l, const Error& e) const {
  if (e.exit() != Exit::internal) throw;
  const int layer = layers_.in_model(f.chunk, l);
  const bool head = l == layers_.layers(f.chunk);
  const std::string out =
      head ? "" : fmt::format(", with output {}", words_of(layers_.boundary(f.chunk, l + 1)));
  fail(Exit::internal, "{} of {}, layer \"{}\" with input {}{}: {}", pass, model().name,
       model().layer_name(layer), words_of(layers_.boundary(f.chunk, l)), out, e.what());
}

Stage::Stage(const model::Model& model, StageShape shape, zero::PlannedVisits& visits, int64_t samples,
             const tensor_parallel::TensorAxis& axis)
    : layers_(model, std::move(shape), samples),
      visits_(visits),
      passes_(layers_, visits),
      states_(layers_),
      frames_(layers_),
      stored_inputs_(layers_.shape().recompute.partition ? StoredInputs(axis) : StoredInputs()) {
  require(!(layers_.shape().recompute.partition && model.cuts_boundaries), Exit::usage,
          "activation_checkpointing.partition_activations: the ranks of {} have different layer inputs, so "
          "partitioning does not apply; remove the key",
          model.name);
}

TraceEvent Stage::shown(const char* what, const Frame& f, int l) const {
  if (!TraceSpan::wanted(trace_)) return {};
  const int layer = layers_.in_model(f.chunk, l);
  return {.name = model().layer_name(layer), .category = what, .layer = layer};
}

Tensor Stage::open(int micro, int chunk, Stream& writer) {
  return frames_.open(micro, chunk, writer, texts_ ? texts_->rows() : 0).inputs[0];
}
void Stage::close(int micro, int chunk, Stream& stream) { frames_.close(frames_.find(micro, chunk), stream); }
void Stage::hold(int micro, int chunk, const Event& until) { frames_.find(micro, chunk).held = until; }

Tensor Stage::output(int micro, int chunk) { return frames_.find(micro, chunk).inputs.back(); }
Tensor Stage::output_gradient(int micro, int chunk) {
  return gradient(frames_.find(micro, chunk), layers_.layers(chunk));
}

Tensor Stage::input_gradient(int micro, int chunk) {
  // Without a split backward the frame is closed, and the gradient is in buffer 0.
  if (shape().split_backward) return gradient(frames_.find(micro, chunk), 0);
  return passing(chunk, 0);
}

Tensor Stage::passing(int chunk, int l, int64_t rows) const {
  const model::TensorSpec t = layers_.boundary(chunk, l, rows);
  return Tensor(passing_[l & 1].tensor().raw(), t.dtype, t.shape);
}

// The gradient at boundary l of a chunk alternates between two buffers; a split backward keeps all of them
// until the weight part.
Tensor Stage::gradient(Frame& f, int l) {
  if (!shape().split_backward) return passing(f.chunk, l);
  const model::TensorSpec& t = layers_.boundary(f.chunk, l);
  Tensor& g = f.gradients[size_t(l)];
  if (!g.defined()) g = frames_.until_backward(f).take(t.dtype, t.shape);
  return g;
}

// Allocates the output of layer l. With recomputation, an output that the frame keeps is written there the
// first time and nowhere the second time; others live as long as their group's activations.
Tensor Stage::take_output(Frame& f, int l, Run run) {
  const model::TensorSpec out = layers_.boundary(f.chunk, l + 1, f.rows);
  if (!shape().trains && l + 1 < layers_.layers(f.chunk))
    return f.inputs[size_t(l) + 1] = passing(f.chunk, l + 1, f.rows);
  const bool kept = shape().recompute.keeps(l + 1, layers_.layers(f.chunk));
  if (kept && run.again) return scratch_.take(out.dtype, out.shape);
  if (layers_.moves_input(f.chunk, l + 1))
    return f.inputs[size_t(l) + 1] =
               stored_inputs_.block((l + 1) / int(shape().recompute.interval), out.dtype, out.shape);
  Arena& arena = kept ? f.keep : run.again || run.alive ? frames_.until_backward(f) : frames_.group();
  return f.inputs[size_t(l) + 1] = arena.take(out.dtype, out.shape);
}

void Stage::forward_layer(Frame& f, int l, const Params& params, const Position& position, Run run,
                          Stream& stream) {
  const Recompute& recompute = shape().recompute;
  if (recompute.again() && recompute.keeps(l, layers_.layers(f.chunk))) frames_.group().release(0);
  const int64_t scratch = scratch_.mark();
  const bool leaves = !run.again && layers_.moves_input(f.chunk, l + 1);
  const int next = leaves ? (l + 1) / int(recompute.interval) : 0;  // index of the group with input y
  if (leaves) stored_inputs_.wait_until_left(next, stream);
  const Tensor y = take_output(f, l, run);
  const bool dropped = !shape().trains || (recompute.again(f.chunk, l) && !run.again && !run.alive);
  Arena& keep = dropped ? frames_.group() : recompute.again(f.chunk, l) ? frames_.until_backward(f) : f.keep;
  const int64_t kept = keep.mark();
  f.saved[size_t(l)] = {};
  const TraceSpan seen(trace_, stream, shown(run.again ? "recompute" : "forward", f, l));
  const model::ForwardArgs args{.y = y,
                                .x = f.inputs[size_t(l)],
                                .params = params,
                                .saved = f.saved[size_t(l)],
                                .keep = keep,
                                .scratch = scratch_,
                                .position = position,
                                .train = run.train,
                                .stream = stream,
                                .lean = recompute.lean_at(f.chunk, l),
                                .constants = constants_,
                                .documents = texts_ ? Tensor() : documents(f.micro),
                                .cache = kv_cache_of(f.chunk, l),
                                .states = states_.of(layers_.in_model(f.chunk, l), run.sees(shape())),
                                .side_loss = run.again ? Tensor() : side_loss(f, l)};
  const WorkLog::Repeats repeats(run.again);
  try {
    layers_.layer(f.chunk, l).forward(args);
  } catch (const Error& e) {
    fail_in_layer("the forward", f, l, e);
  }
  if (see_) see_(layers_.in_model(f.chunk, l), y, stream);
  if (leaves && run.train) {
    f.inputs_home[size_t(next)] = f.home.take(y.dtype(), {stored_inputs_.numel_at_home(y.numel())});
    stored_inputs_.send(next, f.inputs_home[size_t(next)], y, stream);
  }
  if (dropped) keep.release(kept);
  scratch_.release(scratch);
}

// Returns the layer's side loss, or an undefined tensor.
Tensor Stage::side_loss(const Frame& f, int l) const {
  if (!side_losses_.defined() || !layers_.layer(f.chunk, l).has_side_loss()) return {};
  const auto first = model().layers.begin();
  const int64_t row = std::count_if(first, first + layers_.in_model(f.chunk, l),
                                    [](const auto& layer) { return layer->has_side_loss(); });
  const int micro = std::max(0, f.micro);  // a dry frame has none
  return side_losses_.slice(Range{0, 1}.shifted(row * side_losses_.dim(1) + micro));
}

void Stage::bring_inputs(Frame& f, int l, Stream& stream) {
  if (!shape().recompute.moves_inputs()) return;
  const int interval = int(std::min<int64_t>(shape().recompute.interval, layers_.layers(f.chunk)));
  const int group = int(ceil_div(l + 1, interval)) - 1;
  while (f.fetched > std::max(1, group - 1)) {
    const int g = --f.fetched;
    const model::TensorSpec& x = layers_.boundary(f.chunk, g * interval);
    // The weight part needs it as well.
    f.inputs[size_t(g * interval)] = shape().split_backward ? frames_.until_backward(f).take(x.dtype, x.shape)
                                                            : stored_inputs_.block(g, x.dtype, x.shape);
    stored_inputs_.fetch(g, f.inputs[size_t(g * interval)], f.inputs_home[size_t(g)], stream);
  }
  stored_inputs_.wait_until_back(group, stream);
  if (group > 0 && group < f.gathered) stored_inputs_.gather(f.inputs[size_t(group * interval)], stream);
  f.gathered = std::min(f.gathered, group);
}

void Stage::backward_layer(Frame& f, int l, const Params& params, Grads& grads, Backward backward,
                           Stream& stream) {
  const model::BackwardPart part = backward.part;
  const bool wanted = part != model::BackwardPart::weight && !layers_.begins_model(f.chunk, l);
  const TraceSpan seen(trace_, stream, shown("backward", f, l));
  const int64_t mark = scratch_.mark();
  const model::BackwardArgs args{
      .dx = wanted ? gradient(f, l) : Tensor(),
      .dy = gradient(f, l + 1),
      .x = f.inputs[size_t(l)],
      .params = params,
      .grads = grads,
      .saved = f.saved[size_t(l)],
      .scratch = scratch_,
      .position = backward.position,
      .stream = stream,
      .part = part,
      .for_weight = part == model::BackwardPart::both ? nullptr : &f.for_weight[size_t(l)],
      .keep = part == model::BackwardPart::both ? nullptr : &frames_.until_backward(f),
      .lean = shape().recompute.lean_at(f.chunk, l),
      .constants = constants_,
      .documents = documents(f.micro),
      .states = states_.of(layers_.in_model(f.chunk, l), part != model::BackwardPart::weight),
      .scale = backward.scale};
  try {
    layers_.layer(f.chunk, l).backward(args);
  } catch (const Error& e) {
    fail_in_layer("the backward", f, l, e);
  }
  scratch_.release(mark);
}

void Stage::run_head(Frame& f, const Params& params, Grads& grads, float scale, const HeadSums& sums,
                     Stream& stream) {
  const TraceSpan seen(trace_, stream,
                       shown(grads.empty() ? "forward" : "backward", f, layers_.layers(f.chunk)));
  const int64_t mark = scratch_.mark();
  // Without targets no row has a gradient at any scale, and a scale of 0 would compute only losses.
  const float scale_of_rows = scale == 0 ? 1 : scale;
  const bool counts = sums.hits.defined() && model().head->counts_hits();
  const model::HeadArgs args{.losses = losses_,
                             .dx = grads.empty() ? Tensor() : gradient(f, layers_.layers(f.chunk)),
                             .x = f.inputs.back(),
                             .targets = targets_.defined() ? targets(std::max(0, f.micro)) : Tensor(),
                             .params = params,
                             .grads = grads,
                             .scale = scale_of_rows,
                             .scratch = scratch_,
                             .stream = stream,
                             .logits = shape().logits,
                             .hits = counts ? scratch_.take(DType::fp32, {layers_.rows()}) : Tensor()};
  try {
    model().head->run(args);
  } catch (const Error& e) {
    fail_in_layer("the head", f, layers_.layers(f.chunk), e);
  }
  kernels::launch(kernels::Sum{.out = sums.loss, .x = losses_}, stream);
  if (counts) kernels::launch(kernels::Sum{.out = sums.hits, .x = args.hits}, stream);
  scratch_.release(mark);
}

void Stage::forward(const Turn& turn, bool train, Stream& stream) {
  Frame& f = frames_.find(turn.micro, turn.chunk);
  const Passes::OfChunk& passes = passes_.of(turn.chunk);
  const bool alone = !train && layers_.has_head(turn.chunk);
  visits_.begin_pass(alone ? passes_.evaluation() : turn.fused ? passes.train : passes.forward, turn.last);
  scratch_ = Arena(scratch_memory_), frames_.begin_pass();
  visit_ = 0;
  for (int l = 0; l < layers_.layers(turn.chunk); ++l, ++visit_) {
    const Params params = visits_.acquire(visit_);
    const bool alive =
        turn.fused && layers_.may_stay() && shape().recompute.in_last_group(l, layers_.layers(turn.chunk));
    forward_layer(f, l, params, positions_[size_t(turn.micro)], {.train = train, .alive = alive}, stream);
    visits_.finish(visit_);
  }
}

void Stage::backward(const Turn& turn, float scale, Tensor loss_sum, Stream& stream) {
  Frame& f = frames_.find(turn.micro, turn.chunk);
  const Passes::OfChunk& passes = passes_.of(turn.chunk);
  const Position& position = positions_[size_t(turn.micro)];
  if (!turn.fused) visits_.begin_pass(passes.backward, turn.last), visit_ = 0;
  scratch_ = Arena(scratch_memory_), frames_.begin_pass();
  f.fetched = f.gathered = layers_.groups(turn.chunk) - (turn.fused && layers_.may_stay() ? 1 : 0);
  for (const Stop& stop : turn.fused ? passes.fused : passes.apart) {
    bring_inputs(f, stop.layer, stream);
    const Params params = visits_.acquire(visit_);
    const bool head = stop.layer == layers_.layers(turn.chunk),
               split = !head && layers_.splits(turn.chunk, stop.layer);
    Grads grads = split || !stop.backward ? Grads() : as_gradients(visits_.gradients(visit_));
    if (stop.again) forward_layer(f, stop.layer, params, position, {.again = true}, stream);
    if (head)
      run_head(f, params, grads, scale, {.loss = loss_sum}, stream);
    else if (stop.backward)
      backward_layer(f, stop.layer, params, grads,
                     {position, split ? model::BackwardPart::input : model::BackwardPart::both, scale},
                     stream);
    visits_.finish(visit_++);
  }
  if (!shape().split_backward) frames_.close(f, stream);
}

void Stage::backward_weight(const Turn& turn, float scale, Stream& stream) {
  Frame& f = frames_.find(turn.micro, turn.chunk);
  visits_.begin_pass(passes_.of(turn.chunk).weight, turn.last), visit_ = 0;
  scratch_ = Arena(scratch_memory_);
  for (int l = layers_.layers(turn.chunk); l-- > 0;) {
    if (!layers_.splits(turn.chunk, l)) continue;
    const Params none = visits_.acquire(visit_);
    Grads grads = as_gradients(visits_.gradients(visit_));
    backward_layer(f, l, none, grads, {positions_[size_t(turn.micro)], model::BackwardPart::weight, scale},
                   stream);
    visits_.finish(visit_++);
  }
  frames_.close(f, stream);
}

void Stage::head(int micro, const HeadSums& sums, Tensor logits, Range rows, Stream& stream) {
  Frame& f = frames_.find(micro, layers_.chunks() - 1);
  Grads none;
  const Params params = visits_.acquire(visit_);
  if (sums.loss.defined()) run_head(f, params, none, 1, sums, stream);
  if (logits.defined()) {
    const int64_t mark = scratch_.mark();
    model().head->logits(logits, f.inputs.back(), rows, params, scratch_, stream);
    scratch_.release(mark);
  }
  visits_.finish(visit_);
}

}  // namespace cleave::runtime
