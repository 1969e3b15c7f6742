// Kept inputs of layers that are whole on the device only while they are needed. Their home is a part of
// them, or all, on the device or in pinned host memory; they travel on a stream of their own, so that while
// one is computed with, its neighbour travels. Whole inputs live in two blocks in turn.
#pragma once
#include <memory>

#include "device/copy.h"
#include "device/memory.h"
#include "device/trace.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave::runtime {

class AwayInputs {
 public:
  AwayInputs() = default;  // at home is the whole
  // Each rank of the axis has its equal part at home.
  explicit AwayInputs(const tensor_parallel::TensorAxis& axis) : axis_(axis) {}

  // The two blocks, of so many bytes each.
  void allocate(Memory& memory, int64_t block_bytes);

  void show_in(Trace& trace);

  // How many elements of an input of so many are at home; Error(usage) when they do not divide.
  int64_t numel_at_home(int64_t numel) const;
  // The device's memory for input `index` of a chunk, as the type and shape.
  Tensor block(int index, DType dtype, const Shape& shape) const {
    return Tensor(blocks_[index & 1].tensor().raw(), dtype, shape);
  }
  // Before compute writes input `index` to its block: what was there has left.
  void wait_until_left(int index, Stream& compute) const { compute.wait(left_[index & 1]); }
  // After it was written: home, behind the work enqueued on compute.
  void send(int index, Tensor home, Tensor whole, Stream& compute);

  // Brings what is at home back to its range of `whole`, behind the work enqueued on compute, which may have
  // read it.
  void fetch(int index, Tensor whole, Tensor home, Stream& compute);
  void wait_until_back(int index, Stream& compute) const { compute.wait(back_[index & 1]); }
  // whole = all ranks' parts, once what was at home is back. On compute.
  void gather(Tensor whole, Stream& compute) const;

 private:
  Tensor mine(Tensor whole) const;

  tensor_parallel::TensorAxis axis_;  // a rank alone: home has all
  Buffer blocks_[2];
  Trace* trace_ = nullptr;
  Event left_[2], back_[2];
  // None in a dry run, where nothing travels. Goes first: it finishes what was enqueued.
  std::unique_ptr<Stream> copies_;
};

}  // namespace cleave::runtime
