// SwiGLU fused with the product of gate and up, and its gradient fused with the product of y's gradient, as
// cuDNN graphs on tensors in the layout of kernels/dense.h.
#pragma once
#include <compare>

#include "device/tensor.h"
#include "kernels/cuda/cudnn_graph.h"

namespace cleave::kernels::gpu {

// hidden [rows, 2 width] holds gate and up, y has `width` columns; `depth` is the number of terms of the
// product.
struct GatedShape {
  int64_t rows, width, depth;
  DType type;  // bf16 or fp16
  auto operator<=>(const GatedShape&) const = default;
};

// Names of the tensors in memory. of_gate and of_up are the halves of the forward's weight; dgate and dup are
// the halves of hidden's gradient.
namespace gated_names {
inline constexpr int64_t x = 1, of_gate = 2, of_up = 3, gate = 4, up = 5, y = 6, dy = 7, weight = 8,
                         dgate = 9, dup = 10;
}

// Graph from x, of_gate, of_up to gate, up and y.
std::shared_ptr<CudnnGraph> gated_graph(const GatedShape& shape);
// Graph from dy [rows, depth], weight [depth, width], gate and up to dgate and dup.
std::shared_ptr<CudnnGraph> gated_gradient_graph(const GatedShape& shape);

}  // namespace cleave::kernels::gpu
