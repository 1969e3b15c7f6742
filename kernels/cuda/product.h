// Matrix products through cuBLASLt, with what the library does to their result in the same pass.
#pragma once
#include "device/cuda/queue.h"
#include "kernels/matmul.h"

namespace cleave::kernels::gpu {

// GELU is the tanh form in the library.
enum class Epilogue : uint8_t {
  none,           // the op's bias, where it has one
  gelu,           // hidden = the product and bias; c = gelu(hidden)
  gelu_gradient,  // c = the product * gelu'(hidden)
  bias_gradient,  // dbias = row sums of op(a), which are the column sums of what is stored transposed
};

struct Product {
  Matmul op;
  Epilogue epilogue = Epilogue::none;
  Tensor hidden = {};                   // of c's type and shape
  Tensor dbias = {};                    // [m], of c's type
  Tensor a_scales = {}, b_scales = {};  // of operands in FP8, as in Fp8Matmul
};

// False when the library has no kernel for it, and nothing was done. The operands are ones that the library
// multiplies: a and b of one type, c of theirs or fp32, the bias of c's; or a and b those of Fp8Matmul.
bool multiply(const Product& product, CudaQueue& queue);
// The same with a bias of any float type. Where the library does not add it, the product is added to rows of
// it: false may leave these in c.
bool multiply_with_bias(Product product, Stream& stream);

}  // namespace cleave::kernels::gpu
