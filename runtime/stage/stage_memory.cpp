// Memory of a stage and its size.
#include <algorithm>

#include "device/copy.h"
#include "runtime/stage/stage.h"

namespace cleave::runtime {
namespace {

// Returns views with the right shapes but no memory, for a dry run.
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

std::vector<model::ParamGradient> dry_grads(const std::vector<UnitSpec>& units, DType dtype, bool* written) {
  std::vector<model::ParamGradient> grads;
  for (const UnitSpec& u : units)
    for (const Tensor& p : dry_params({u}, dtype))
      grads.push_back(u.frozen ? model::ParamGradient{} : model::ParamGradient{p, written});
  return grads;
}

int64_t bytes_of(const model::TensorSpec& spec) { return spec.shape.numel() * size_of(spec.dtype); }

}  // namespace

int64_t Stage::bytes_from_others() const {
  int64_t most = 0;
  for (int c = 0; c < layers_.chunks(); ++c)
    if (!layers_.begins_model(c, 0)) most = std::max(most, bytes_of(layers_.boundary(c, 0)));
  return most;
}

int64_t Stage::bytes_to_others() const {
  int64_t most = 0;
  for (int c = 0; c < layers_.chunks(); ++c)
    if (!layers_.has_head(c)) most = std::max(most, bytes_of(layers_.boundary(c, layers_.layers(c))));
  return most;
}

// On the CPU layers read the model's constants directly.
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
  states_.allocate(memory, stream);
  measure();
  frames_.allocate(memory);
  if (shape().texts > 0) allocate_texts(memory);
  if (block_bytes_ > 0) stored_inputs_.allocate(memory, block_bytes_);
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
      const model::KeptHeads kept = layers_.layer(c, l).kept_heads();
      if (kept.heads == 0) continue;
      const Shape all{shape().texts, kept.heads, positions, kept.head_dim};
      for (auto* buffers : {&kept_keys_, &kept_values_})
        (*buffers)[size_t(layers_.in_model(c, l))] =
            memory.allocate(device, Category::kv_cache, model().dtype, all,
                            buffers == &kept_keys_ ? "kept keys" : "kept values");
    }
}

// Runs the layers' own code on dry arenas and a stream that discards all work.
void Stage::measure() {
  Stream discard(Stream::Mode::discard);
  for (int c = 0; c < layers_.chunks(); ++c) measure(c, discard);
}

void Stage::measure(int chunk, Stream& discard) {
  Frame dry = frames_.dry(chunk);
  for (int l = 0; l < layers_.layers(chunk); ++l) {
    forward_layer(dry, l, dry_params(layers_.layer(chunk, l).units(), model().dtype), {}, {}, discard);
    const model::TensorSpec& y = layers_.boundary(chunk, l + 1);
    if (layers_.moves_input(chunk, l + 1))
      block_bytes_ = std::max(block_bytes_, round_up(y.shape.numel() * size_of(y.dtype), 64));
  }
  const int inner = shape().trains ? 0 : 1;  // the gradients of the ends are in frames, not in passing_
  for (int l = inner; !shape().split_backward && l <= layers_.layers(chunk) - inner; ++l) {
    const model::TensorSpec& x = layers_.boundary(chunk, l);
    if (is_float(x.dtype)) passing_bytes_ = std::max(passing_bytes_, x.shape.numel() * size_of(x.dtype));
  }
  if (layers_.has_head(chunk)) {
    const auto units = model().head->units();
    bool written = false;
    Grads of_head = dry_grads(units, model().dtype, &written), none;
    const Params params = dry_params(units, model().dtype);
    const Tensor sum(nullptr, DType::fp64, {1});
    if (shape().trains) run_head(dry, params, of_head, 1, {.loss = sum}, discard);
    run_head(dry, params, none, 1, {.loss = sum, .hits = sum}, discard);  // for an evaluation
  }
  if (shape().trains) measure_backward(dry, chunk, discard);
  frames_.measured(dry);
}

void Stage::measure_backward(Frame& dry, int chunk, Stream& discard) {
  bool written = false;
  auto params = [&](int l) { return dry_params(layers_.layer(chunk, l).units(), model().dtype); };
  auto grads = [&](int l) { return dry_grads(layers_.layer(chunk, l).units(), model().dtype, &written); };
  dry.fetched = dry.gathered = layers_.groups(chunk);
  for (const Stop& stop : backward_stops(layers_.layers(chunk), shape().recompute, false, false, chunk)) {
    const int l = stop.layer;
    bring_inputs(dry, l, discard);
    if (stop.again) forward_layer(dry, l, params(l), {}, {.again = true}, discard);
    Grads g = grads(l);
    const model::BackwardPart part =
        layers_.splits(chunk, l) ? model::BackwardPart::input : model::BackwardPart::both;
    if (stop.backward) backward_layer(dry, l, params(l), g, {{}, part}, discard);
  }
  for (int l = layers_.layers(chunk); l-- > 0;) {
    Grads g = grads(l);
    if (layers_.splits(chunk, l))
      backward_layer(dry, l, params(l), g, {{}, model::BackwardPart::weight}, discard);
  }
}

}  // namespace cleave::runtime
