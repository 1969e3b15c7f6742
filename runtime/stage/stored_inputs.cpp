#include "runtime/stage/stored_inputs.h"

namespace cleave::runtime {

void StoredInputs::allocate(Memory& memory, int64_t block_bytes) {
  for (Buffer& b : blocks_)
    b = memory.allocate(MemoryKind::device, Category::activations, DType::uint8, {block_bytes},
                        "inputs of layers on their way");
  if (!memory.dry()) copies_ = std::make_unique<Stream>(memory.device(), Stream::Mode::worker);
}

void StoredInputs::show_in(Trace& trace) {
  if (!copies_) return;
  trace_ = &trace;
  trace.name(*copies_, "kept inputs");
}

int64_t StoredInputs::numel_at_home(int64_t numel) const {
  require(numel % axis_.size() == 0, Exit::usage,
          "activation_checkpointing.partition_activations: {} elements of a layer input are not divisible by "
          "{} tensor-parallel ranks; choose another sequence length or micro-batch size, or remove the key",
          numel, axis_.size());
  return numel / axis_.size();
}

Tensor StoredInputs::mine(Tensor whole) const {
  const int64_t n = numel_at_home(whole.numel());
  return whole.slice({axis_.rank() * n, (axis_.rank() + 1) * n});
}

void StoredInputs::send(int index, Tensor home, Tensor whole, Stream& compute) {
  if (!copies_) return;
  copies_->wait(compute.record());
  {
    const TraceSpan seen(trace_, *copies_, "inputs", "leave");
    copy(home, mine(whole), *copies_);
  }
  left_[index & 1] = copies_->record();
}

void StoredInputs::fetch(int index, Tensor whole, Tensor home, Stream& compute) {
  if (!copies_) return;
  copies_->wait(compute.record());
  {
    const TraceSpan seen(trace_, *copies_, "inputs", "come back");
    copy(mine(whole), home, *copies_);
  }
  back_[index & 1] = copies_->record();
}

void StoredInputs::gather(Tensor whole, Stream& compute) const {
  if (axis_.size() > 1) axis_.exchange(whole, mine(whole), compute, "inputs of layers");
}

}  // namespace cleave::runtime
