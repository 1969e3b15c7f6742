// Kept layer inputs that are whole on the device only while they are needed. Their home holds all or a part
// of them, on the device or in pinned host memory. A separate stream transfers one input while its neighbor
// is used. Whole inputs alternate between two device blocks.
#pragma once
#include <memory>

#include "device/copy.h"
#include "device/memory.h"
#include "device/trace.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave::runtime {

class StoredInputs {
 public:
  StoredInputs() = default;  // the home holds the whole input
  // Each rank of the axis keeps its equal part in the home.
  explicit StoredInputs(const tensor_parallel::TensorAxis& axis) : axis_(axis) {}

  // Allocates the two blocks of `block_bytes` bytes each.
  void allocate(Memory& memory, int64_t block_bytes);

  void show_in(Trace& trace);

  // Returns the elements kept in the home for an input of `numel` elements. Throws Error(usage) if they do
  // not divide evenly.
  int64_t numel_at_home(int64_t numel) const;
  // Returns the device memory of input `index` of a chunk with this type and shape.
  Tensor block(int index, DType dtype, const Shape& shape) const {
    return Tensor(blocks_[index & 1].tensor().raw(), dtype, shape);
  }
  // Call before compute writes input `index` to its block: waits until the previous input was sent.
  void wait_until_left(int index, Stream& compute) const { compute.wait(left_[index & 1]); }
  // Sends a written input to its home after the work enqueued on compute.
  void send(int index, Tensor home, Tensor whole, Stream& compute);

  // Copies the home's part back to its range of `whole`, after the work enqueued on compute, which may read
  // the block.
  void fetch(int index, Tensor whole, Tensor home, Stream& compute);
  void wait_until_back(int index, Stream& compute) const { compute.wait(back_[index & 1]); }
  // whole = the parts of all ranks, after the home's part was fetched. Runs on compute.
  void gather(Tensor whole, Stream& compute) const;

 private:
  Tensor mine(Tensor whole) const;

  tensor_parallel::TensorAxis axis_;  // single rank: the home holds everything
  Buffer blocks_[2];
  Trace* trace_ = nullptr;
  Event left_[2], back_[2];
  // Null in a dry run, which transfers nothing. Destroyed first: it finishes enqueued work.
  std::unique_ptr<Stream> copies_;
};

}  // namespace cleave::runtime
