#include "kernels/cuda/cudnn_gated_graphs.h"

namespace cleave::kernels::gpu {
namespace {

namespace tensors = gated_names;
using GraphTensor = CudnnGraph::Tensor;

struct GatedBuilder {
  explicit GatedBuilder(const GatedShape& shape) : s(shape) {
    type = s.type == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
  }

  GraphTensor rows_of_depth(int64_t of) {
    return g->input(of, type, CudnnShape::matrix(s.rows, s.depth, s.depth, 1));
  }
  // Transposed view of a weight half, which is stored [outputs, inputs].
  GraphTensor turned(int64_t of) {
    return g->input(of, type, CudnnShape::matrix(s.depth, s.width, 1, s.depth));
  }
  GraphTensor half_of_hidden(int64_t of) {
    return g->input(of, type, CudnnShape::matrix(s.rows, s.width, 2 * s.width, 1));
  }
  GraphTensor whole(int64_t of) {
    return g->input(of, type, CudnnShape::matrix(s.rows, s.width, s.width, 1));
  }
  GraphTensor inside() {
    return g->inside(CUDNN_DATA_FLOAT, CudnnShape::matrix(s.rows, s.width, s.width, 1));
  }
  GraphTensor made(cudnnPointwiseMode_t mode, GraphTensor a, GraphTensor b = {}) {
    return g->pointwise(mode, a, b, inside());
  }

  GatedShape s;
  cudnnDataType_t type;
  std::shared_ptr<CudnnGraph> g = std::make_shared<CudnnGraph>();
};

}  // namespace

std::shared_ptr<CudnnGraph> gated_graph(const GatedShape& shape) {
  GatedBuilder b(shape);
  const GraphTensor x = b.rows_of_depth(tensors::x);
  const GraphTensor gate = b.g->matmul(x, b.turned(tensors::of_gate), b.half_of_hidden(tensors::gate));
  const GraphTensor up = b.g->matmul(x, b.turned(tensors::of_up), b.half_of_hidden(tensors::up));
  const GraphTensor silu = b.made(CUDNN_POINTWISE_MUL, gate, b.made(CUDNN_POINTWISE_SIGMOID_FWD, gate));
  b.g->pointwise(CUDNN_POINTWISE_MUL, silu, up, b.whole(tensors::y));
  return b.g;
}

// With s = sigmoid(gate) and a = gate s: dup = dh a, dgate = dh up (s + a - a s).
std::shared_ptr<CudnnGraph> gated_gradient_graph(const GatedShape& shape) {
  GatedBuilder b(shape);
  const GraphTensor weight =
      b.g->input(tensors::weight, b.type, CudnnShape::matrix(shape.depth, shape.width, shape.width, 1));
  const GraphTensor gate = b.half_of_hidden(tensors::gate), up = b.half_of_hidden(tensors::up);
  const GraphTensor dh = b.g->matmul(b.rows_of_depth(tensors::dy), weight, b.inside());
  const GraphTensor s = b.made(CUDNN_POINTWISE_SIGMOID_FWD, gate), a = b.made(CUDNN_POINTWISE_MUL, gate, s);
  b.g->pointwise(CUDNN_POINTWISE_MUL, dh, a, b.half_of_hidden(tensors::dup));
  const GraphTensor rest = b.made(CUDNN_POINTWISE_SUB, a, b.made(CUDNN_POINTWISE_MUL, a, s));
  const GraphTensor slope = b.made(CUDNN_POINTWISE_ADD, s, rest);
  b.g->pointwise(CUDNN_POINTWISE_MUL, b.made(CUDNN_POINTWISE_MUL, dh, up), slope,
                 b.half_of_hidden(tensors::dgate));
  return b.g;
}

}  // namespace cleave::kernels::gpu
