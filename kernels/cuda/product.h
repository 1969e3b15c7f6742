// Matrix products with cuBLASLt, including its epilogues.
#pragma once
#include "device/cuda/queue.h"
#include "kernels/matmul.h"

namespace cleave::kernels::gpu {

// GELU is the tanh form in the library.
enum class Epilogue : uint8_t {
  none,           // the op's bias, if defined
  gelu,           // hidden = product + bias; c = gelu(hidden)
  gelu_gradient,  // c = product * gelu'(hidden)
  bias_gradient,  // dbias = row sums of op(a), i.e. column sums of the transposed stored tensor
};

struct Product {
  Matmul op;
  Epilogue epilogue = Epilogue::none;
  Tensor hidden = {};                   // of c's type and shape
  Tensor dbias = {};                    // [m], of c's type
  Tensor a_scales = {}, b_scales = {};  // of FP8 operands, as in Fp8Matmul
};

// Enqueues the product. Returns false, without any work, if the library has no kernel for it. Supported
// operands: a and b of one type, c of the same type or fp32, bias of c's type; or a and b of Fp8Matmul.
bool multiply(const Product& product, CudaQueue& queue);
// The same with a bias of any float type. If the library cannot add it, writes the bias to the rows of c and
// adds the product; a false return may leave these rows in c.
bool multiply_with_bias(Product product, Stream& stream);

}  // namespace cleave::kernels::gpu
