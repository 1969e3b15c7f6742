#include "kernels/matmul.h"

#include "kernels/cuda/product.h"
#include "kernels/elementwise.h"

namespace cleave::kernels::gpu {
namespace {

// Types that the library multiplies: a and b alike, c of their type or fp32.
bool direct(const Matmul& op) {
  return op.a.dtype() == op.b.dtype() && (op.c.dtype() == op.a.dtype() || op.c.dtype() == DType::fp32);
}

// Hands out pieces of the stream's scratch for one op; a cast itself needs none.
class Pieces {
 public:
  Pieces(CudaQueue& queue, Stream& stream) : queue_(queue), stream_(stream) {}
  Tensor take(Shape shape) {
    const int64_t begin = used_;
    used_ += round_up(shape.numel() * size_of(DType::fp32), 256);
    return {static_cast<std::byte*>(queue_.scratch(used_)) + begin, DType::fp32, shape};
  }
  Tensor as_float(const Tensor& x) {
    if (!x.defined() || x.dtype() == DType::fp32) return x;
    const Tensor y = take(x.shape());
    launch(Cast{.y = y, .x = x}, stream_);
    return y;
  }

 private:
  CudaQueue& queue_;
  Stream& stream_;
  int64_t used_ = 0;
};

// Without terms a product is zero, or the bias.
void fill_rows(const Matmul& op, Stream& stream) {
  if (op.accumulate) return;
  if (!op.bias.defined()) return launch(Fill{.y = op.c}, stream);
  for (int64_t row = 0; row < op.m(); ++row)
    launch(Cast{.y = op.c.rows({row, row + 1}), .x = op.bias}, stream);
}

// In fp32; where the library adds no bias, the product is added to it.
void multiply_wide(const Matmul& op, CudaQueue& queue, Stream& stream) {
  if (multiply({.op = op}, queue)) return;
  Matmul bare = op;
  if (op.bias.defined()) fill_rows(op, stream), bare.bias = {}, bare.accumulate = true;
  CHECK(op.bias.defined() && multiply({.op = bare}, queue),
        "cuBLASLt has no kernel for a product of {} x {} x {} in fp32", op.m(), op.n(), op.k());
}

// Mixes of types that no training step asks for: everything in fp32, then rounded.
void multiply_in_float(const Matmul& op, CudaQueue& queue, Stream& stream) {
  Pieces pieces(queue, stream);
  Matmul wide = op;
  wide.a = pieces.as_float(op.a), wide.b = pieces.as_float(op.b), wide.bias = pieces.as_float(op.bias);
  const bool rounds = op.c.dtype() != DType::fp32;
  if (rounds) wide.c = pieces.take(op.c.shape()), wide.accumulate = false;
  multiply_wide(wide, queue, stream);
  if (rounds && op.accumulate)
    launch(Axpy{.y = op.c, .x = wide.c}, stream);
  else if (rounds)
    launch(Cast{.y = op.c, .x = wide.c}, stream);
}

}  // namespace

void run(const Matmul& op, Stream& stream) {
  CudaQueue& queue = cuda_queue(stream);
  if (op.c.numel() == 0) return;
  if (op.k() == 0) return fill_rows(op, stream);
  Matmul same = op;
  if (op.bias.defined() && op.bias.dtype() != op.c.dtype() && direct(op)) {
    // The library adds a bias of the result's type only.
    same.bias = Tensor(queue.scratch(op.n() * size_of(op.c.dtype())), op.c.dtype(), {op.n()});
    launch(Cast{.y = same.bias, .x = op.bias}, stream);
  }
  if (direct(op) && multiply({.op = same}, queue)) return;
  multiply_in_float(op, queue, stream);
}

}  // namespace cleave::kernels::gpu
