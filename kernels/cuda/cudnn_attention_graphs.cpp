// cuDNN recognizes attention by order and kind of these operations (the fused flash attention patterns of its
// documentation), so they must not change.
#include "kernels/cuda/cudnn_attention_graphs.h"

namespace cleave::kernels::gpu {
namespace {

namespace name = attention_names;
using GraphTensor = CudnnGraph::Tensor;

// Shared parts of both graphs.
struct Builder {
  explicit Builder(const AttentionShape& shape) : s(shape) {
    type = s.type == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
  }

  int64_t stride() const { return (s.heads + 2 * s.kv_heads) * s.dim; }
  // Shapes of heads in the joined rows of qkv, in the rows of y, and of their transposes.
  CudnnShape joined(int64_t heads) const {
    return {{s.batch, heads, s.seq, s.dim}, {s.seq * stride(), s.dim, stride(), 1}};
  }
  CudnnShape out() const {
    const int64_t row = s.heads * s.dim;
    return {{s.batch, s.heads, s.seq, s.dim}, {s.seq * row, s.dim, row, 1}};
  }
  static CudnnShape transposed(CudnnShape x) {
    std::swap(x.dims[2], x.dims[3]), std::swap(x.strides[2], x.strides[3]);
    return x;
  }
  CudnnShape square() const {
    return {{s.batch, s.heads, s.seq, s.seq}, {s.heads * s.seq * s.seq, s.seq * s.seq, s.seq, 1}};
  }
  CudnnShape row() const { return {{s.batch, s.heads, s.seq, 1}, {s.heads * s.seq, s.seq, 1, 1}}; }
  CudnnShape whole() const {  // all heads, inside a graph
    return {{s.batch, s.heads, s.seq, s.dim}, {s.heads * s.seq * s.dim, s.seq * s.dim, s.dim, 1}};
  }

  GraphTensor scores() { return g->inside(CUDNN_DATA_FLOAT, square()); }
  GraphTensor sums() { return g->inside(CUDNN_DATA_FLOAT, row()); }
  GraphTensor pointwise(cudnnPointwiseMode_t mode, GraphTensor x, GraphTensor b = {}) {
    return g->pointwise(mode, x, b, scores());
  }
  // Replaces scores of keys after the query by the lowest number.
  GraphTensor causal(GraphTensor x) {
    const GraphTensor query = g->index(2, x, g->inside(CUDNN_DATA_INT32, square()));
    const GraphTensor key = g->index(3, x, g->inside(CUDNN_DATA_INT32, square()));
    const GraphTensor seen =
        g->pointwise(CUDNN_POINTWISE_CMP_GE, query, key, g->inside(CUDNN_DATA_BOOLEAN, square()));
    return g->pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, g->number(name::lowest), scores(), seen);
  }

  AttentionShape s;
  cudnnDataType_t type;
  std::shared_ptr<CudnnGraph> g = std::make_shared<CudnnGraph>();
};

// Sums gradients of keys or values over the query heads that share them.
void sum_heads(Builder& b, GraphTensor probabilities, GraphTensor of_queries, int64_t gradient) {
  const GraphTensor transposed =
      b.g->reshape(probabilities, b.g->inside(b.type, Builder::transposed(b.square())));
  const GraphTensor result = b.g->input(gradient, b.type, b.joined(b.s.kv_heads));
  if (b.s.heads == b.s.kv_heads) {
    b.g->matmul(transposed, of_queries, result);
    return;
  }
  const GraphTensor every = b.g->matmul(transposed, of_queries, b.g->inside(b.type, b.whole()));
  b.g->reduce(CUDNN_REDUCE_TENSOR_ADD, every, result);
}

}  // namespace

std::shared_ptr<CudnnGraph> attention_graph(const AttentionShape& shape) {
  Builder b(shape);
  CudnnGraph& g = *b.g;
  const GraphTensor q = g.input(name::q, b.type, b.joined(shape.heads));
  const GraphTensor k = g.input(name::k, b.type, Builder::transposed(b.joined(shape.kv_heads)));
  const GraphTensor v = g.input(name::v, b.type, b.joined(shape.kv_heads));
  const GraphTensor scaled =
      b.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, k, b.scores()), g.number(name::scale));
  const GraphTensor masked = b.causal(scaled);
  const GraphTensor most = g.reduce(CUDNN_REDUCE_TENSOR_MAX, masked, b.sums());
  const GraphTensor e = b.pointwise(CUDNN_POINTWISE_EXP, b.pointwise(CUDNN_POINTWISE_SUB, masked, most));
  const GraphTensor sum = g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, b.sums());
  const GraphTensor log = g.pointwise(CUDNN_POINTWISE_LOG, sum, {}, b.sums());
  g.pointwise(CUDNN_POINTWISE_ADD, most, log, g.input(name::lse, CUDNN_DATA_FLOAT, b.row()));
  const GraphTensor p = g.pointwise(CUDNN_POINTWISE_DIV, e, sum, g.inside(b.type, b.square()));
  g.matmul(p, v, g.input(name::y, b.type, b.out()));
  return b.g;
}

std::shared_ptr<CudnnGraph> attention_gradient_graph(const AttentionShape& shape, QuerySums sums) {
  Builder b(shape);
  CudnnGraph& g = *b.g;
  const GraphTensor q = g.input(name::q, b.type, b.joined(shape.heads));
  const CudnnShape turned = Builder::transposed(b.joined(shape.kv_heads));
  const GraphTensor k = g.input(name::k, b.type, turned), v = g.input(name::v, b.type, turned);
  const GraphTensor y = g.input(name::y, b.type, b.out()), dy = g.input(name::dy, b.type, b.out());
  const GraphTensor lse = g.input(name::lse, CUDNN_DATA_FLOAT, b.row()), scale = g.number(name::scale);

  const GraphTensor both = g.pointwise(CUDNN_POINTWISE_MUL, dy, y, g.inside(CUDNN_DATA_FLOAT, b.out()));
  const GraphTensor dots = g.reduce(CUDNN_REDUCE_TENSOR_ADD, both, b.sums());
  const GraphTensor delta = g.pointwise(CUDNN_POINTWISE_MUL, dots, g.number(name::one),
                                        g.input(name::delta, CUDNN_DATA_FLOAT, b.row()));

  const GraphTensor scaled = b.pointwise(CUDNN_POINTWISE_MUL, g.matmul(q, k, b.scores()), scale);
  const GraphTensor p =
      b.pointwise(CUDNN_POINTWISE_EXP, b.causal(b.pointwise(CUDNN_POINTWISE_SUB, scaled, lse)));
  sum_heads(b, p, dy, name::dv);

  const GraphTensor dp = b.pointwise(CUDNN_POINTWISE_SUB, g.matmul(dy, v, b.scores()), delta);
  const GraphTensor ds = b.pointwise(CUDNN_POINTWISE_MUL, b.pointwise(CUDNN_POINTWISE_MUL, dp, p), scale);
  sum_heads(b, ds, q, name::dk);
  const GraphTensor keys = g.reshape(k, g.inside(CUDNN_DATA_FLOAT, b.joined(shape.kv_heads)));
  const GraphTensor dq = g.input(name::dq, b.type, b.joined(shape.heads));
  if (sums == QuerySums::in_order) {
    g.matmul(ds, keys, dq);
  } else {
    const GraphTensor summed = g.matmul(ds, keys, g.input(name::dq_sums, CUDNN_DATA_FLOAT, b.whole()));
    g.pointwise(CUDNN_POINTWISE_IDENTITY, summed, {}, dq);
  }
  return b.g;
}

}  // namespace cleave::kernels::gpu
