// Kept inputs of layers on their way to pinned host memory and back, on a stream of their own: while one is
// computed with, its neighbour travels. On the device they live in two blocks in turn.
#pragma once
#include <memory>

#include "device/copy.h"
#include "device/memory.h"

namespace cleave {

class HostInputs {
 public:
  // The two blocks, of so many bytes each.
  void allocate(Memory& memory, int64_t block_bytes);

  // The device's place of input `index` of a chunk, as the type and shape.
  Tensor block(int index, DType dtype, const Shape& shape) const {
    return Tensor(blocks_[index & 1].tensor().raw(), dtype, shape);
  }
  // Before compute writes input `index` to its block: what was there has left.
  void wait_until_left(int index, Stream& compute) const { compute.wait(left_[index & 1]); }
  // After it was written: to the host, behind the work enqueued on compute.
  void send(int index, Tensor host, Tensor from, Stream& compute);

  // Brings it back, behind the work enqueued on compute, which may have read the place.
  void fetch(int index, Tensor to, Tensor host, Stream& compute);
  void wait_until_back(int index, Stream& compute) const { compute.wait(back_[index & 1]); }

 private:
  Buffer blocks_[2];
  Event left_[2], back_[2];
  // None in a dry run, where nothing travels. Goes first: it finishes what was enqueued.
  std::unique_ptr<Stream> copies_;
};

}  // namespace cleave
