#include "kernels/matmul.h"

#include "kernels/cuda/product.h"
#include "kernels/elementwise.h"

namespace cleave::kernels::gpu {
namespace {

// Types that the library multiplies: equal a and b, c of their type or fp32.
bool direct(const Matmul& op) {
  return op.a.dtype() == op.b.dtype() && (op.c.dtype() == op.a.dtype() || op.c.dtype() == DType::fp32);
}

// Allocates pieces of the stream's scratch for one op; a cast itself needs none.
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

// Returns the bias in c's type, converted in the stream's scratch if necessary.
Tensor bias_in_type_of_c(const Matmul& op, Stream& stream) {
  if (!op.bias.defined() || op.bias.dtype() == op.c.dtype()) return op.bias;
  const Tensor same(cuda_queue(stream).scratch(op.n() * size_of(op.c.dtype())), op.c.dtype(), {op.n()});
  launch(Cast{.y = same, .x = op.bias}, stream);
  return same;
}

// A product without terms is zero, or the bias.
void fill_rows(const Matmul& op, Stream& stream) {
  if (op.accumulate) return;
  if (!op.bias.defined()) return launch(Fill{.y = op.c}, stream);
  launch(CopyRuns{.y = op.c,
                  .x = bias_in_type_of_c(op, stream),
                  .width = op.n(),
                  .outer = {.count = op.m(), .y = op.n(), .x = 0}},
         stream);
}

// For mixed types that no training step uses: computes in fp32, then rounds.
void multiply_in_float(const Matmul& op, Stream& stream) {
  Pieces pieces(cuda_queue(stream), stream);
  Matmul wide = op;
  wide.a = pieces.as_float(op.a), wide.b = pieces.as_float(op.b), wide.bias = pieces.as_float(op.bias);
  const bool rounds = op.c.dtype() != DType::fp32;
  if (rounds) wide.c = pieces.take(op.c.shape()), wide.accumulate = false;
  CHECK(multiply_with_bias({.op = wide}, stream),
        "cuBLASLt has no kernel for a product of {} x {} x {} in fp32", op.m(), op.n(), op.k());
  if (rounds && op.accumulate)
    launch(Axpy{.y = op.c, .x = wide.c}, stream);
  else if (rounds)
    launch(Cast{.y = op.c, .x = wide.c}, stream);
}

}  // namespace

bool multiply_with_bias(Product product, Stream& stream) {
  Matmul& op = product.op;
  op.bias = bias_in_type_of_c(op, stream);
  if (multiply(product, cuda_queue(stream))) return true;
  if (!op.bias.defined()) return false;
  fill_rows(op, stream);
  op.bias = {}, op.accumulate = true;
  return multiply(product, cuda_queue(stream));
}

void run(const Matmul& op, Stream& stream) {
  if (op.c.numel() == 0) return;
  if (op.k() == 0) return fill_rows(op, stream);
  if (direct(op) && multiply_with_bias({.op = op}, stream)) return;
  multiply_in_float(op, stream);
}

}  // namespace cleave::kernels::gpu
