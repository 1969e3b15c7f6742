// The memory of a stage: measured by a dry run, allocated once, handed out as frames.
#include <algorithm>

#include "device/copy.h"
#include "runtime/stage.h"

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

}  // namespace

// On the CPU layers read the model's own.
void Stage::place_constants(Memory& memory, Stream& stream) {
  constants_ = model_.constants;
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
    if (home_bytes_ > 0)
      frames_[size_t(f)].home_memory =
          memory.allocate(shape_.recompute.to_host ? MemoryKind::pinned : device, Category::activations,
                          DType::uint8, {home_bytes_}, "inputs of layers");
    free_.push_back(f);
  }
  for (int w = 0; waiting_bytes_ > 0 && w < shape_.waiting_weights; ++w) {
    waiting_.push_back(bytes(waiting_bytes_, "activations until the weights' part"));
    free_waiting_.push_back(w);
  }
  if (block_bytes_ > 0) away_inputs_.allocate(memory, block_bytes_);
  group_ = bytes(group_arena_.peak_bytes(), "activations of layers that run again");
  scratch_ = bytes(scratch_arena_.peak_bytes(), "scratch");
  for (Buffer& p : passing_) p = bytes(passing_bytes_, "boundaries of layers");
}

// The layers' own code against dry arenas and a stream that drops all work.
void Stage::measure() {
  Stream discard(Stream::Mode::discard);
  scratch_arena_ = group_arena_ = Arena(), keep_bytes_ = waiting_bytes_ = passing_bytes_ = 0;
  home_bytes_ = block_bytes_ = 0;
  for (int c = 0; c < int(shape_.chunks.size()); ++c) measure(c, discard);
}

void Stage::measure(int chunk, Stream& discard) {
  Frame dry;
  start(dry, chunk);
  dry.waiting = 0;
  for (int l = 0; l < layers(chunk); ++l) {
    forward_layer(dry, l, dry_params(layer(chunk, l).units(), model_.dtype), {}, {}, discard);
    const TensorSpec& y = boundary(chunk, l + 1);
    if (away(chunk, l + 1))
      block_bytes_ = std::max(block_bytes_, round_up(y.shape.numel() * size_of(y.dtype), 64));
  }
  const int inner = shape_.trains ? 0 : 1;  // the ends have no gradients in passing_, but are frames'
  for (int l = inner; !shape_.split_backward && l <= layers(chunk) - inner; ++l) {
    const TensorSpec& x = boundary(chunk, l);
    if (is_float(x.dtype)) passing_bytes_ = std::max(passing_bytes_, x.shape.numel() * size_of(x.dtype));
  }
  if (has_head(chunk)) {
    const auto units = model_.head->units();
    bool written = false;
    Grads of_head = shape_.trains ? dry_grads(units, model_.dtype, &written) : Grads();
    run_head(dry, dry_params(units, model_.dtype), of_head, 1, Tensor(nullptr, DType::fp64, {1}), discard);
  }
  keep_bytes_ = std::max(keep_bytes_, dry.keep.peak_bytes());
  if (shape_.trains) measure_backward(dry, chunk, discard);
}

void Stage::measure_backward(Frame& dry, int chunk, Stream& discard) {
  bool written = false;
  auto params = [&](int l) { return dry_params(layer(chunk, l).units(), model_.dtype); };
  auto grads = [&](int l) { return dry_grads(layer(chunk, l).units(), model_.dtype, &written); };
  dry.fetched = dry.gathered = groups(chunk);
  for (const Stop& stop : backward_stops(layers(chunk), shape_.recompute, false, false)) {
    const int l = stop.layer;
    bring_inputs(dry, l, discard);
    if (stop.again) forward_layer(dry, l, params(l), {}, {.again = true}, discard);
    Grads g = grads(l);
    const BackwardPart part = splits(chunk, l) ? BackwardPart::input : BackwardPart::both;
    if (stop.backward) backward_layer(dry, l, params(l), g, {}, part, discard);
  }
  for (int l = layers(chunk); l-- > 0;) {
    Grads g = grads(l);
    if (splits(chunk, l)) backward_layer(dry, l, params(l), g, {}, BackwardPart::weight, discard);
  }
  keep_bytes_ = std::max(keep_bytes_, dry.keep.peak_bytes());
  home_bytes_ = std::max(home_bytes_, dry.home.peak_bytes());
  waiting_bytes_ = std::max(waiting_bytes_, dry.until_weight.peak_bytes());
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
  const TensorSpec& in = boundary(chunk, 0);
  f.home = f.home_memory.defined() ? Arena(f.home_memory) : Arena();
  f.inputs_home.assign(size_t(groups(chunk)), {});
  f.saved.assign(layers_here, {}), f.for_weight.assign(layers_here, {});
  f.gradients.assign(layers_here + 1, {});
  f.inputs.assign(layers_here + 1, {});
  f.inputs[0] = f.keep.take(in.dtype, in.shape);
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
  if (f.waiting >= 0) free_waiting_.push_back(std::exchange(f.waiting, -1));
  free_.push_back(int(&f - frames_.data()));
}

// Where what a backward needs besides the kept inputs lives. Between the parts of a split backward it must
// last, so the frame takes one of a few blocks, which only such frames need. A block is free as soon as its
// weights' part is enqueued: later writers are behind that on the compute stream, or on the comm stream
// behind an event of it (Executor::run), and behind sends out of the block as well.
Arena& Stage::until_backward(Frame& f) {
  if (!shape_.recompute.again()) return f.keep;
  if (!shape_.split_backward) return group_arena_;
  if (f.waiting < 0) {
    CHECK(!free_waiting_.empty(), "chunk {}: all {} blocks until the weights' part are in use", f.chunk,
          waiting_.size());
    f.waiting = free_waiting_.back();
    free_waiting_.pop_back();
    f.until_weight = Arena(waiting_[size_t(f.waiting)]);
  }
  return f.until_weight;
}

void Stage::hold(int micro, int chunk, const Event& until) { frame(micro, chunk).held = until; }

}  // namespace cleave
