#include "runtime/stage.h"

#include <algorithm>

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave {
namespace {

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
  for (const UnitSpec& u : units)
    for (const Tensor& p : dry_params({u}, dtype))
      grads.push_back(u.frozen ? ParamGradient{} : ParamGradient{p, written});
  return grads;
}

std::vector<ParamGradient> as_gradients(const std::vector<GradientSlot>& slots) {
  std::vector<ParamGradient> grads;
  for (const GradientSlot& s : slots) grads.push_back({s.tensor, s.written});
  return grads;
}

}  // namespace

Stage::Stage(const Model& model, StageShape shape, ParameterStore& store, int64_t samples,
             const TensorAxis& axis, const std::function<Sharding(const UnitSpec&)>& sharding_of)
    : layers_(model, std::move(shape), samples),
      store_(store),
      passes_(layers_, store, sharding_of),
      frames_(layers_),
      away_inputs_(layers_.shape().recompute.partition ? AwayInputs(axis) : AwayInputs()) {
  require(
      !(layers_.shape().recompute.partition && model.cuts_boundaries), Exit::usage,
      "activation_checkpointing.partition_activations: the ranks of {} have different inputs of a layer, so "
      "there is nothing to partition; remove the key",
      model.name);
}

// On the CPU layers read the model's own.
void Stage::place_constants(Memory& memory, Stream& stream) {
  constants_ = model().constants;
  if (!memory.device().is_cuda()) return;
  for (Tensor& t : constants_) {
    Buffer& b = constant_copies_.emplace_back(memory.allocate(
        MemoryKind::device, Category::weights, t.dtype(), t.shape(), "constants of the model"));
    if (!memory.dry()) copy(b, t, stream);
    t = b;
  }
}

void Stage::allocate(Memory& memory, Stream& stream) {
  const auto device = MemoryKind::device;
  place_constants(memory, stream);
  if (shape().last) {
    targets_ = memory.allocate(device, Category::staging, DType::int32, {shape().batches * layers_.rows()},
                               "targets");
    losses_ = memory.allocate(device, Category::activations, DType::fp32, {layers_.rows()}, "losses");
  }
  if (model().document_mask)
    documents_ =
        memory.allocate(device, Category::staging, DType::int32,
                        {shape().batches * layers_.rows() * model().parts}, "beginnings of documents");
  measure();
  frames_.allocate(memory);
  if (shape().texts > 0) allocate_texts(memory);
  if (block_bytes_ > 0) away_inputs_.allocate(memory, block_bytes_);
  auto bytes = [&](int64_t n, const char* name) {
    return memory.allocate(device, Category::activations, DType::uint8, {n}, name);
  };
  scratch_memory_ = bytes(scratch_.peak_bytes(), "scratch");
  for (Buffer& p : passing_) p = bytes(passing_bytes_, "boundaries of layers");
}

void Stage::allocate_texts(Memory& memory) {
  const auto device = MemoryKind::device;
  text_rows_ = memory.allocate(device, Category::staging, DType::int32, {2, text_rows()}, "rows of texts");
  kept_keys_.resize(model().layers.size()), kept_values_.resize(model().layers.size());
  const int64_t positions = model().rows_per_sample * model().parts;
  for (int c = 0; c < layers_.chunks(); ++c)
    for (int l = 0; l < layers_.layers(c); ++l) {
      const KeptHeads kept = layers_.layer(c, l).kept_heads();
      if (kept.heads == 0) continue;
      const Shape all{shape().texts, kept.heads, positions, kept.head_dim};
      for (auto* buffers : {&kept_keys_, &kept_values_})
        (*buffers)[size_t(layers_.in_model(c, l))] =
            memory.allocate(device, Category::kv_cache, model().dtype, all,
                            buffers == &kept_keys_ ? "kept keys" : "kept values");
    }
}

void Stage::begin_texts(const TextPass* pass, Stream& stream) {
  texts_ = pass;
  if (!pass) return;
  CHECK(shape().texts > 0 && 0 < pass->rows() && pass->rows() <= text_rows(),
        "a pass over {} rows of texts; this stage has room for {}", pass->rows(),
        shape().texts > 0 ? text_rows() : 0);
  for (const auto* values : {&pass->texts, &pass->places}) {
    const Tensor to = text_rows_.tensor().rows({values == &pass->places, values == &pass->places ? 2 : 1});
    copy(to.view({text_rows()}).slice({0, pass->rows()}),
         Tensor(const_cast<int32_t*>(values->data()), DType::int32, {pass->rows()}, MemoryKind::host),
         stream);
  }
}

Past Stage::past_of(int chunk, int l) const {
  if (!texts_) return {};
  const auto rows = [&](int64_t i) {
    return text_rows_.tensor().rows({i, i + 1}).view({text_rows()}).slice({0, texts_->rows()});
  };
  Past past{.rows = {rows(0), rows(1)}, .keys = {}, .values = {}};
  const Buffer &keys = kept_keys_[size_t(layers_.in_model(chunk, l))],
               &values = kept_values_[size_t(layers_.in_model(chunk, l))];
  if (keys.defined()) past.keys = keys, past.values = values;
  return past;
}

// The layers' own code against dry arenas and a stream that drops all work.
void Stage::measure() {
  Stream discard(Stream::Mode::discard);
  for (int c = 0; c < layers_.chunks(); ++c) measure(c, discard);
}

void Stage::measure(int chunk, Stream& discard) {
  Frame dry = frames_.dry(chunk);
  for (int l = 0; l < layers_.layers(chunk); ++l) {
    forward_layer(dry, l, dry_params(layers_.layer(chunk, l).units(), model().dtype), {}, {}, discard);
    const TensorSpec& y = layers_.boundary(chunk, l + 1);
    if (layers_.away(chunk, l + 1))
      block_bytes_ = std::max(block_bytes_, round_up(y.shape.numel() * size_of(y.dtype), 64));
  }
  const int inner = shape().trains ? 0 : 1;  // the ends have no gradients in passing_, but are frames'
  for (int l = inner; !shape().split_backward && l <= layers_.layers(chunk) - inner; ++l) {
    const TensorSpec& x = layers_.boundary(chunk, l);
    if (is_float(x.dtype)) passing_bytes_ = std::max(passing_bytes_, x.shape.numel() * size_of(x.dtype));
  }
  if (layers_.has_head(chunk)) {
    const auto units = model().head->units();
    bool written = false;
    Grads of_head = shape().trains ? dry_grads(units, model().dtype, &written) : Grads();
    run_head(dry, dry_params(units, model().dtype), of_head, 1, Tensor(nullptr, DType::fp64, {1}), discard);
  }
  if (shape().trains) measure_backward(dry, chunk, discard);
  frames_.measured(dry);
}

void Stage::measure_backward(Frame& dry, int chunk, Stream& discard) {
  bool written = false;
  auto params = [&](int l) { return dry_params(layers_.layer(chunk, l).units(), model().dtype); };
  auto grads = [&](int l) { return dry_grads(layers_.layer(chunk, l).units(), model().dtype, &written); };
  dry.fetched = dry.gathered = layers_.groups(chunk);
  for (const Stop& stop : backward_stops(layers_.layers(chunk), shape().recompute, false, false)) {
    const int l = stop.layer;
    bring_inputs(dry, l, discard);
    if (stop.again) forward_layer(dry, l, params(l), {}, {.again = true}, discard);
    Grads g = grads(l);
    const BackwardPart part = layers_.splits(chunk, l) ? BackwardPart::input : BackwardPart::both;
    if (stop.backward) backward_layer(dry, l, params(l), g, {}, part, discard);
  }
  for (int l = layers_.layers(chunk); l-- > 0;) {
    Grads g = grads(l);
    if (layers_.splits(chunk, l)) backward_layer(dry, l, params(l), g, {}, BackwardPart::weight, discard);
  }
}

TraceEvent Stage::shown(const char* what, const Frame& f, int l) const {
  if (!trace_ || !trace_->on()) return {};
  const int layer = layers_.in_model(f.chunk, l);
  return {.name = model().layer_name(layer), .category = what, .layer = layer};
}

Tensor Stage::targets(int micro) const {
  const int64_t slot = micro % shape().batches;
  return targets_.tensor().slice({slot * layers_.rows(), (slot + 1) * layers_.rows()});
}

Tensor Stage::documents(int micro) const {
  if (!model().document_mask) return {};
  const int64_t size = layers_.rows() * model().parts, slot = std::max(0, micro) % shape().batches;
  return documents_.tensor()
      .slice({slot * size, (slot + 1) * size})
      .view({layers_.samples(), size / layers_.samples()});
}

// Every rank has them of whole samples: attention looks at all positions wherever the sequence is cut.
void Stage::load_documents(int micro, const Tensor& given, Stream& stream) {
  if (!model().document_mask) return;
  const Tensor here = documents(micro);
  const int64_t positions = given.defined() ? given.numel() : 0;
  CHECK(
      positions == here.numel(),
      "batch with the documents of {} positions, the micro-batch has {}; a model with a document mask wants "
      "Batch::documents",
      positions, here.numel());
  for (int64_t i = 0; given.has_memory() && i < positions; ++i) {
    const int64_t place = i % here.dim(1), begin = given.as<int32_t>()[i];
    const int64_t least = place > 0 ? given.as<int32_t>()[i - 1] : 0;
    require(
        least <= begin && begin <= (place > 0 ? place : 0), Exit::data,
        "position {} of sample {} is said to be of a document that begins at {}; it may begin at {} to {}",
        place, i / here.dim(1), begin, least, place);
  }
  copy(here, given.view(here.shape()), stream);
}

void Stage::take_part(Tensor to, Tensor whole, Stream& stream) const {
  const int64_t runs = model().parts == 1 ? 1 : layers_.samples(), run = to.numel() / runs;
  for (int64_t r = 0; r < runs; ++r) {
    const Tensor mine = to.slice({r * run, (r + 1) * run});
    const Tensor from = whole.slice(Range{0, run}.shifted((r * model().parts + model().part) * run));
    if (from.dtype() == mine.dtype())
      copy(mine, from, stream);
    else
      launch(Cast{.y = mine, .x = from}, stream);
  }
}

void Stage::load(int micro, const Batch& batch, Stream& stream) {
  if (texts_) {
    CHECK(micro == 0 && batch.input.numel() == texts_->rows(), "a pass over {} rows of texts, but {} tokens",
          texts_->rows(), batch.input.numel());
    positions_.resize(std::max<size_t>(1, positions_.size()));
    if (shape().first) copy(open(micro, 0, stream), batch.input, stream);
    loaded_ = stream.record();
    return;
  }
  const int64_t inputs = layers_.input().shape.numel() * model().parts,
                targets_of = layers_.rows() * model().parts;
  CHECK(batch.input.numel() == inputs && batch.targets.numel() == targets_of,
        "batch of {} inputs and {} targets, the micro-batch has {} and {}", batch.input.numel(),
        batch.targets.numel(), inputs, targets_of);
  if (positions_.size() <= size_t(micro)) positions_.resize(size_t(micro) + 1);
  positions_[size_t(micro)] = batch.position;
  if (shape().first) {
    const Tensor x = open(micro, 0, stream);
    take_part(x, batch.input, stream);
  }
  if (shape().last) take_part(targets(micro), batch.targets, stream);
  load_documents(micro, batch.documents, stream);
  loaded_ = stream.record();
}

Tensor Stage::output(int micro, int chunk) { return frames_.find(micro, chunk).inputs.back(); }
Tensor Stage::output_gradient(int micro, int chunk) {
  return gradient(frames_.find(micro, chunk), layers_.layers(chunk));
}

Tensor Stage::input_gradient(int micro, int chunk) {
  // The frame is closed unless the backward is split; the gradient is in the buffer of turn 0.
  if (shape().split_backward) return gradient(frames_.find(micro, chunk), 0);
  return passing(chunk, 0);
}

Tensor Stage::passing(int chunk, int l, int64_t rows) const {
  const TensorSpec t = layers_.boundary(chunk, l, rows);
  return Tensor(passing_[l & 1].tensor().raw(), t.dtype, t.shape);
}

// The gradient at boundary l of a chunk is in one of two buffers in turn; a split backward keeps them all
// until the weights' part.
Tensor Stage::gradient(Frame& f, int l) {
  if (!shape().split_backward) return passing(f.chunk, l);
  const TensorSpec& t = layers_.boundary(f.chunk, l);
  Tensor& g = f.gradients[size_t(l)];
  if (!g.defined()) g = frames_.until_backward(f).take(t.dtype, t.shape);
  return g;
}

// Of layer l. With recomputation an output that the frame keeps is written there the first time and nowhere
// the second; the others live as long as what the layers of their group make.
Tensor Stage::take_output(Frame& f, int l, Run run) {
  const TensorSpec out = layers_.boundary(f.chunk, l + 1, f.rows);
  if (!shape().trains && l + 1 < layers_.layers(f.chunk))
    return f.inputs[size_t(l) + 1] = passing(f.chunk, l + 1, f.rows);
  const bool kept = shape().recompute.keeps(l + 1, layers_.layers(f.chunk));
  if (kept && run.again) return scratch_.take(out.dtype, out.shape);
  if (layers_.away(f.chunk, l + 1))
    return f.inputs[size_t(l) + 1] =
               away_inputs_.block((l + 1) / int(shape().recompute.interval), out.dtype, out.shape);
  Arena& arena = kept ? f.keep : run.again || run.alive ? frames_.until_backward(f) : frames_.group();
  return f.inputs[size_t(l) + 1] = arena.take(out.dtype, out.shape);
}

void Stage::forward_layer(Frame& f, int l, const Params& params, const Position& position, Run run,
                          Stream& stream) {
  const Recompute& recompute = shape().recompute;
  if (recompute.again() && recompute.keeps(l, layers_.layers(f.chunk))) frames_.group().release(0);
  const int64_t scratch = scratch_.mark();
  const bool leaves = !run.again && layers_.away(f.chunk, l + 1);
  const int next = leaves ? (l + 1) / int(recompute.interval) : 0;  // the group that y is the input of
  if (leaves) away_inputs_.wait_until_left(next, stream);
  const Tensor y = take_output(f, l, run);
  const bool dropped = !shape().trains || (recompute.again() && !run.again && !run.alive);
  Arena& keep = dropped ? frames_.group() : frames_.until_backward(f);
  const int64_t kept = keep.mark();
  f.saved[size_t(l)] = {};
  const TraceSpan seen(trace_, stream, shown(run.again ? "recompute" : "forward", f, l));
  layers_.layer(f.chunk, l)
      .forward({.y = y,
                .x = f.inputs[size_t(l)],
                .params = params,
                .saved = f.saved[size_t(l)],
                .keep = keep,
                .scratch = scratch_,
                .position = position,
                .train = run.train,
                .stream = stream,
                .lean = recompute.lean,
                .constants = constants_,
                .documents = texts_ ? Tensor() : documents(f.micro),
                .past = past_of(f.chunk, l)});
  if (leaves && run.train) {
    f.inputs_home[size_t(next)] = f.home.take(y.dtype(), {away_inputs_.numel_at_home(y.numel())});
    away_inputs_.send(next, f.inputs_home[size_t(next)], y, stream);
  }
  if (dropped) keep.release(kept);
  scratch_.release(scratch);
}

void Stage::bring_inputs(Frame& f, int l, Stream& stream) {
  if (!shape().recompute.away()) return;
  const int interval = int(std::min<int64_t>(shape().recompute.interval, layers_.layers(f.chunk)));
  const int group = int(ceil_div(l + 1, interval)) - 1;
  while (f.fetched > std::max(1, group - 1)) {
    const int g = --f.fetched;
    const TensorSpec& x = layers_.boundary(f.chunk, g * interval);
    // The weights' part needs it as well.
    f.inputs[size_t(g * interval)] = shape().split_backward ? frames_.until_backward(f).take(x.dtype, x.shape)
                                                            : away_inputs_.block(g, x.dtype, x.shape);
    away_inputs_.fetch(g, f.inputs[size_t(g * interval)], f.inputs_home[size_t(g)], stream);
  }
  away_inputs_.wait_until_back(group, stream);
  if (group > 0 && group < f.gathered) away_inputs_.gather(f.inputs[size_t(group * interval)], stream);
  f.gathered = std::min(f.gathered, group);
}

void Stage::backward_layer(Frame& f, int l, const Params& params, Grads& grads, const Position& position,
                           BackwardPart part, Stream& stream) {
  const bool wanted = part != BackwardPart::weight && !layers_.begins_model(f.chunk, l);
  const TraceSpan seen(trace_, stream, shown("backward", f, l));
  const int64_t mark = scratch_.mark();
  layers_.layer(f.chunk, l)
      .backward({.dx = wanted ? gradient(f, l) : Tensor(),
                 .dy = gradient(f, l + 1),
                 .x = f.inputs[size_t(l)],
                 .params = params,
                 .grads = grads,
                 .saved = f.saved[size_t(l)],
                 .scratch = scratch_,
                 .position = position,
                 .stream = stream,
                 .part = part,
                 .for_weight = part == BackwardPart::both ? nullptr : &f.for_weight[size_t(l)],
                 .keep = part == BackwardPart::both ? nullptr : &frames_.until_backward(f),
                 .lean = shape().recompute.lean,
                 .constants = constants_,
                 .documents = documents(f.micro)});
  scratch_.release(mark);
}

void Stage::run_head(Frame& f, const Params& params, Grads& grads, float scale, Tensor loss_sum,
                     Stream& stream) {
  const TraceSpan seen(trace_, stream,
                       shown(grads.empty() ? "forward" : "backward", f, layers_.layers(f.chunk)));
  const int64_t mark = scratch_.mark();
  model().head->run({.losses = losses_,
                     .dx = grads.empty() ? Tensor() : gradient(f, layers_.layers(f.chunk)),
                     .x = f.inputs.back(),
                     .targets = targets_.defined() ? targets(std::max(0, f.micro)) : Tensor(),
                     .params = params,
                     .grads = grads,
                     .scale = scale,
                     .scratch = scratch_,
                     .stream = stream,
                     .logits = shape().logits});
  scratch_.release(mark);
  launch(Sum{.out = loss_sum, .x = losses_}, stream);
}

void Stage::forward(const Turn& turn, bool train, Stream& stream) {
  Frame& f = frames_.find(turn.micro, turn.chunk);
  const Passes::OfChunk& passes = passes_.of(turn.chunk);
  const bool alone = !train && layers_.has_head(turn.chunk);
  store_.begin_pass(alone ? passes_.evaluation() : turn.fused ? passes.train : passes.forward, turn.last);
  scratch_ = Arena(scratch_memory_), frames_.begin_pass();
  visit_ = 0;
  for (int l = 0; l < layers_.layers(turn.chunk); ++l, ++visit_) {
    const Params params = store_.acquire(visit_);
    const bool alive =
        turn.fused && layers_.may_stay() && shape().recompute.in_last_group(l, layers_.layers(turn.chunk));
    forward_layer(f, l, params, positions_[size_t(turn.micro)], {.train = train, .alive = alive}, stream);
    store_.finish(visit_);
  }
}

void Stage::backward(const Turn& turn, float scale, Tensor loss_sum, Stream& stream) {
  Frame& f = frames_.find(turn.micro, turn.chunk);
  const Passes::OfChunk& passes = passes_.of(turn.chunk);
  const Position& position = positions_[size_t(turn.micro)];
  if (!turn.fused) store_.begin_pass(passes.backward, turn.last), visit_ = 0;
  scratch_ = Arena(scratch_memory_), frames_.begin_pass();
  f.fetched = f.gathered = layers_.groups(turn.chunk) - (turn.fused && layers_.may_stay() ? 1 : 0);
  for (const Stop& stop : turn.fused ? passes.fused : passes.apart) {
    bring_inputs(f, stop.layer, stream);
    const Params params = store_.acquire(visit_);
    const bool head = stop.layer == layers_.layers(turn.chunk),
               split = !head && layers_.splits(turn.chunk, stop.layer);
    Grads grads = split || !stop.backward ? Grads() : as_gradients(store_.gradients(visit_));
    if (stop.again) forward_layer(f, stop.layer, params, position, {.again = true}, stream);
    if (head)
      run_head(f, params, grads, scale, loss_sum, stream);
    else if (stop.backward)
      backward_layer(f, stop.layer, params, grads, position, split ? BackwardPart::input : BackwardPart::both,
                     stream);
    store_.finish(visit_++);
  }
  if (!shape().split_backward) frames_.close(f, stream);
}

void Stage::backward_weight(const Turn& turn, Stream& stream) {
  Frame& f = frames_.find(turn.micro, turn.chunk);
  store_.begin_pass(passes_.of(turn.chunk).weight, turn.last), visit_ = 0;
  scratch_ = Arena(scratch_memory_);
  for (int l = layers_.layers(turn.chunk); l-- > 0;) {
    if (!layers_.splits(turn.chunk, l)) continue;
    const Params none = store_.acquire(visit_);
    Grads grads = as_gradients(store_.gradients(visit_));
    backward_layer(f, l, none, grads, positions_[size_t(turn.micro)], BackwardPart::weight, stream);
    store_.finish(visit_++);
  }
  frames_.close(f, stream);
}

void Stage::head(int micro, Tensor loss_sum, Tensor logits, Range rows, Stream& stream) {
  Frame& f = frames_.find(micro, layers_.chunks() - 1);
  Grads none;
  const Params params = store_.acquire(visit_);
  if (loss_sum.defined()) run_head(f, params, none, 1, loss_sum, stream);
  if (logits.defined()) {
    const int64_t mark = scratch_.mark();
    model().head->logits(logits, f.inputs.back(), rows, params, scratch_, stream);
    scratch_.release(mark);
  }
  store_.finish(visit_);
}

Tensor Stage::open(int micro, int chunk, Stream& writer) {
  return frames_.open(micro, chunk, writer, texts_ ? texts_->rows() : 0).inputs[0];
}
void Stage::close(int micro, int chunk, Stream& stream) { frames_.close(frames_.find(micro, chunk), stream); }
void Stage::hold(int micro, int chunk, const Event& until) { frames_.find(micro, chunk).held = until; }

}  // namespace cleave
