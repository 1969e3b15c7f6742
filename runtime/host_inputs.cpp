#include "runtime/host_inputs.h"

namespace cleave {

void HostInputs::allocate(Memory& memory, int64_t block_bytes) {
  for (Buffer& b : blocks_)
    b = memory.allocate(MemoryKind::device, Category::activations, DType::uint8, {block_bytes},
                        "inputs on their way to the host");
  if (!memory.dry()) copies_ = std::make_unique<Stream>(memory.device(), Stream::Mode::worker);
}

void HostInputs::send(int index, Tensor host, Tensor from, Stream& compute) {
  if (!copies_) return;
  copies_->wait(compute.record());
  copy(host, from, *copies_);
  left_[index & 1] = copies_->record();
}

void HostInputs::fetch(int index, Tensor to, Tensor host, Stream& compute) {
  if (!copies_) return;
  copies_->wait(compute.record());
  copy(to, host, *copies_);
  back_[index & 1] = copies_->record();
}

}  // namespace cleave
