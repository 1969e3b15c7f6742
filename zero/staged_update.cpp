#include "zero/staged_update.h"

#include <algorithm>

#include "device/copy.h"

namespace cleave::zero {
namespace {

bool contains(Range kinds, int64_t kind) { return kinds.begin <= kind && kind < kinds.end; }

Stream::Mode mode_of(const Memory& memory) { return memory.dry() ? Stream::Mode::dry : Stream::Mode::worker; }
Device device_of(const Memory& memory) { return memory.dry() ? Device{} : memory.device(); }

}  // namespace

StagedUpdate::StagedUpdate(Memory& memory, offload::UpdateSide side, const Travels& travels, int64_t largest)
    : side_(side),
      piece_(std::clamp(largest, int64_t{1}, kPiece)),
      work_(side == offload::UpdateSide::device ? device_of(memory) : Device{}, mode_of(memory)),
      in_(device_of(memory), mode_of(memory)),
      out_(device_of(memory), mode_of(memory)) {
  const MemoryKind here = side == offload::UpdateSide::device ? MemoryKind::device : MemoryKind::pinned;
  auto allocate = [&](DType type) {
    return memory.allocate(here, Category::staging, type, {piece_}, "tiles of an update on their way");
  };
  for (Slot& slot : slots_) {
    for (int k = 0; k < travels.kinds; ++k) slot.state[size_t(k)] = allocate(DType::fp32);
    if (travels.gradients) slot.gradient = allocate(*travels.gradients);
    if (travels.weights) slot.weights = allocate(*travels.weights);
  }
  for (Stream* stream : {&work_, &in_, &out_}) {
    if (stream == &work_ && side == offload::UpdateSide::host) continue;
    spaces_.push_back(allocate_workspace(memory, kCopyScratch, kEventScratch));
    if (stream->on_cuda()) spaces_.back().lend_to(*stream);
  }
}

void StagedUpdate::show_in(Trace& trace) {
  trace_ = &trace;
  const char* side = side_ == offload::UpdateSide::host ? "host" : "streamed";
  trace.name(work_, fmt::format("{} updates", side));
  trace.name(in_, fmt::format("operands to {} updates", side));
  trace.name(out_, fmt::format("results of {} updates", side));
}

void StagedUpdate::wait(const Event& event) { in_.wait(event), work_.wait(event); }

void StagedUpdate::begin_walk() { in_.wait(out_.record()); }

void StagedUpdate::synchronize() { in_.synchronize(), work_.synchronize(), out_.synchronize(); }

Event StagedUpdate::run(const Kernels& kernels, const optim::UpdateSlice& slice, Range read, Range written) {
  Event done;
  for (Range r{0, 0}; r.begin < slice.param.numel(); r.begin = r.end) {
    r.end = std::min(slice.param.numel(), r.begin + piece_);
    done = run_piece(kernels, slice.slice(r), r, read, written);
  }
  return done.state() ? done : work_.record();
}

Event StagedUpdate::run_piece(const Kernels& kernels, const optim::UpdateSlice& there, Range range,
                              Range read, Range written) {
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  optim::UpdateSlice here = there;
  struct Operand {
    const Tensor& there;
    Tensor& here;
    const Buffer& buffer;
    bool arrives, leaves;
    bool travels = false;
  };
  std::vector<Operand> operands = {
      {there.param, here.param, slot.state[0], contains(read, 0), contains(written, 0)},
      {there.grad, here.grad, slot.gradient, true, false},
      {there.copy, here.copy, slot.weights, false, true}};
  for (size_t s = 0; s < here.state.size(); ++s) {
    const auto kind = int64_t(s) + 1;
    operands.push_back(
        {there.state[s], here.state[s], slot.state[s + 1], contains(read, kind), contains(written, kind)});
  }
  in_.wait(slot.free), work_.wait(slot.free);
  bool leaves = false;
  for (Operand& o : operands) {
    o.travels = o.there.defined() &&
                (o.there.memory() == MemoryKind::device) != (side_ == offload::UpdateSide::device);
    if (!o.travels) continue;
    o.here = o.buffer.tensor().slice({0, range.size()});
    leaves = leaves || o.leaves;
    if (!o.arrives) continue;
    const TraceSpan seen(trace_, in_, "update", "arrives");
    copy(o.here, o.there, in_);
  }
  work_.wait(in_.record());
  {
    const TraceSpan seen(trace_, work_, "update", "kernels");
    kernels(here, range, work_);
  }
  slot.free = worked_ = work_.record();
  if (!leaves) return slot.free;
  out_.wait(slot.free);
  const TraceSpan seen(trace_, out_, "update", "leaves");
  for (const Operand& o : operands)
    if (o.travels && o.leaves) copy(o.there, o.here, out_);
  return slot.free = out_.record();
}

}  // namespace cleave::zero
