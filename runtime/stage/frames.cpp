#include "runtime/stage/frames.h"

#include <algorithm>
#include <utility>

namespace cleave::runtime {

void Frames::start(Frame& f, int chunk, int64_t rows) {
  f.chunk = chunk, f.rows = rows;
  f.keep = f.memory_.defined() ? Arena(f.memory_) : Arena();
  f.home = f.home_memory_.defined() ? Arena(f.home_memory_) : Arena();
  const auto layers = size_t(layers_.layers(chunk));
  f.inputs_home.assign(size_t(layers_.groups(chunk)), {});
  f.saved.assign(layers, {}), f.for_weight.assign(layers, {});
  f.gradients.assign(layers + 1, {});
  f.inputs.assign(layers + 1, {});
  const model::TensorSpec in = layers_.boundary(chunk, 0, rows);
  f.inputs[0] = f.keep.take(in.dtype, in.shape);
}

Frame Frames::dry(int chunk) {
  Frame f;
  start(f, chunk, 0);
  f.waiting_ = 0;
  return f;
}

void Frames::measured(const Frame& f) {
  bytes_.keep = std::max(bytes_.keep, f.keep.peak_bytes());
  if (layers_.shape().trains) bytes_.home = std::max(bytes_.home, f.home.peak_bytes());
  bytes_.waiting = std::max(bytes_.waiting, f.until_weight_.peak_bytes());
  bytes_.group = group_.peak_bytes();
}

void Frames::allocate(Memory& memory) {
  const StageShape& shape = layers_.shape();
  auto allocate = [&](MemoryKind kind, int64_t n, const char* name) {
    return memory.allocate(kind, Category::activations, DType::uint8, {n}, name);
  };
  const auto device = MemoryKind::device, home = shape.recompute.to_host ? MemoryKind::pinned : device;
  for (int f = 0; f < shape.frames; ++f) {
    frames_[size_t(f)].memory_ = allocate(device, bytes_.keep, "kept activations");
    if (bytes_.home > 0) frames_[size_t(f)].home_memory_ = allocate(home, bytes_.home, "inputs of layers");
    free_.push_back(f);
  }
  for (int w = 0; bytes_.waiting > 0 && w < shape.waiting_weights; ++w) {
    waiting_.push_back(allocate(device, bytes_.waiting, "activations until the weights' part"));
    free_waiting_.push_back(w);
  }
  group_memory_ = allocate(device, bytes_.group, "activations of layers that run again");
}

Frame& Frames::open(int micro, int chunk, Stream& writer, int64_t rows) {
  CHECK(!free_.empty(), "micro-batch {} in chunk {}: all {} frames are in use", micro, chunk, frames_.size());
  Frame& f = frames_[size_t(free_.front())];
  free_.pop_front();
  f.micro = micro;
  writer.wait(f.idle_), writer.wait(f.held);
  start(f, chunk, rows);
  return f;
}

Frame& Frames::find(int micro, int chunk) {
  for (Frame& f : frames_)
    if (f.micro == micro && f.chunk == chunk) return f;
  fail(Exit::internal, "micro-batch {} is not in chunk {}", micro, chunk);
}

void Frames::close(Frame& f, Stream& stream) {
  f.idle_ = stream.record();
  f.micro = f.chunk = -1;
  if (f.waiting_ >= 0) free_waiting_.push_back(std::exchange(f.waiting_, -1));
  free_.push_back(int(&f - frames_.data()));
}

// Takes one of a few blocks for frames between the parts of a split backward. A block is free as soon as its
// weight part is enqueued: later writers run after it on the compute stream, or on the comm stream after an
// event of it (Executor::run), and also after sends from the block.
Arena& Frames::until_backward(Frame& f) {
  const StageShape& shape = layers_.shape();
  if (!shape.recompute.again()) return f.keep;
  if (!shape.split_backward) return group_;
  if (f.waiting_ < 0) {
    CHECK(!free_waiting_.empty(), "chunk {}: all {} blocks until the weights' part are in use", f.chunk,
          waiting_.size());
    f.waiting_ = free_waiting_.back();
    free_waiting_.pop_back();
    f.until_weight_ = Arena(waiting_[size_t(f.waiting_)]);
  }
  return f.until_weight_;
}

}  // namespace cleave::runtime
