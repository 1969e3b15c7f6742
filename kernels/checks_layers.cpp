// Operand checks of dense layers, norms and attention.
#include "kernels/attention.h"
#include "kernels/checks.h"
#include "kernels/dense.h"
#include "kernels/kv_cache.h"
#include "kernels/launched.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"

namespace cleave::kernels {

void Matmul::check() const {
  const char* op = "Matmul";
  Operand(op, "a", a).is_float().rank(2);
  Operand(op, "b", b).is_float().rank(2);
  Operand(op, "c", c).is_float().rank(2).no_overlap_with("a", a).no_overlap_with("b", b);
  const int64_t inner = k();
  Operand(op, "a", a).has(transpose_a ? Shape{inner, m()} : Shape{m(), inner});
  Operand(op, "b", b).has(transpose_b ? Shape{n(), inner} : Shape{inner, n()});
  if (!bias.defined()) return;
  Operand(op, "bias", bias).is_float().numel(n());
  CHECK(!accumulate, "{}: bias with accumulate would be added once per call; add it in the first call", op);
}
CLEAVE_LAUNCH(Matmul)

void BiasGradient::check() const {
  Operand("BiasGradient", "dy", dy).is_float().rank(2);
  Operand("BiasGradient", "db", db).is_float().numel(dy.dim(1));
}
CLEAVE_LAUNCH(BiasGradient)

void DenseActivation::check() const {
  product().check();
  activation().check();
  Operand("DenseActivation", "y", y)
      .has(hidden.shape())
      .no_overlap_with("hidden", hidden)
      .no_overlap_with("x", x)
      .no_overlap_with("weight", weight);
}
CLEAVE_LAUNCH(DenseActivation)

void DenseActivationGradient::check() const {
  product().check();
  activation().check();
  Operand("DenseActivationGradient", "dhidden", dhidden)
      .has(hidden.shape())
      .no_overlap_with("hidden", hidden);
}
CLEAVE_LAUNCH(DenseActivationGradient)

void DenseGated::check() const {
  product().check();
  activation().check();
  Operand("DenseGated", "y", y)
      .no_overlap_with("hidden", hidden)
      .no_overlap_with("x", x)
      .no_overlap_with("weight", weight);
}
CLEAVE_LAUNCH(DenseGated)

void DenseGatedGradient::check() const {
  product().check();
  activation().check();
  Operand("DenseGatedGradient", "dhidden", dhidden)
      .no_overlap_with("hidden", hidden)
      .no_overlap_with("dy", dy);
}
CLEAVE_LAUNCH(DenseGatedGradient)

void DenseWeightGradient::check() const {
  product().check();
  bias_gradient().check();
  Operand("DenseWeightGradient", "dbias", dbias)
      .no_overlap_with("dweight", dweight)
      .no_overlap_with("dy", dy);
}
CLEAVE_LAUNCH(DenseWeightGradient)

void LayerNormForward::check() const {
  const char* op = "LayerNormForward";
  Operand(op, "x", x).is_float().rank(2);
  Operand(op, "y", y).is(x.dtype()).has(x.shape());
  Operand(op, "weight", weight).is(x.dtype()).numel(x.dim(1));
  Operand(op, "bias", bias).is(x.dtype()).numel(x.dim(1));
  Operand(op, "mean", mean).is(DType::fp32).numel(x.dim(0));
  Operand(op, "rstd", rstd).is(DType::fp32).numel(x.dim(0));
  if (!residual.defined()) return;
  Operand(op, "residual", residual).is(x.dtype()).has(x.shape());
  Operand(op, "sum", sum).is(x.dtype()).has(x.shape());
  CHECK(sum.defined() || x.numel() == 0, "{}: a residual needs memory for the sum", op);
}
CLEAVE_LAUNCH(LayerNormForward)

void LayerNormBackward::check() const {
  const char* op = "LayerNormBackward";
  Operand(op, "x", x).is_float().rank(2);
  Operand(op, "dx", dx).is(x.dtype()).has(x.shape());
  Operand(op, "dy", dy).is(x.dtype()).has(x.shape());
  Operand(op, "weight", weight).is(x.dtype()).numel(x.dim(1));
  Operand(op, "dweight", dweight).is_float().numel(x.dim(1));
  Operand(op, "dbias", dbias).is_float().numel(x.dim(1));
  Operand(op, "mean", mean).is(DType::fp32).numel(x.dim(0));
  Operand(op, "rstd", rstd).is(DType::fp32).numel(x.dim(0));
  if (dresidual.defined()) Operand(op, "dresidual", dresidual).is(x.dtype()).has(x.shape());
}
CLEAVE_LAUNCH(LayerNormBackward)

void RmsNormForward::check() const {
  const char* op = "RmsNormForward";
  Operand(op, "x", x).is_float().rank(2);
  Operand(op, "y", y).is(x.dtype()).has(x.shape());
  Operand(op, "weight", weight).is(x.dtype()).numel(x.dim(1));
  Operand(op, "rstd", rstd).is(DType::fp32).numel(x.dim(0));
  if (!residual.defined()) return;
  Operand(op, "residual", residual).is(x.dtype()).has(x.shape());
  Operand(op, "sum", sum).is(x.dtype()).has(x.shape());
}
CLEAVE_LAUNCH(RmsNormForward)

void RmsNormBackward::check() const {
  const char* op = "RmsNormBackward";
  Operand(op, "x", x).is_float().rank(2);
  Operand(op, "dx", dx).is(x.dtype()).has(x.shape());
  Operand(op, "dy", dy).is(x.dtype()).has(x.shape());
  Operand(op, "weight", weight).is(x.dtype()).numel(x.dim(1));
  Operand(op, "dweight", dweight).is_float().numel(x.dim(1));
  Operand(op, "rstd", rstd).is(DType::fp32).numel(x.dim(0));
  if (dresidual.defined()) Operand(op, "dresidual", dresidual).is(x.dtype()).has(x.shape());
}
CLEAVE_LAUNCH(RmsNormBackward)

namespace {

void check_heads(const char* op, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "{}: {} heads must be a multiple of {} kv_heads",
        op, heads, kv_heads);
  CHECK(head_dim > 0, "{}: head_dim must be positive, got {}", op, head_dim);
}

}  // namespace

void Rotary::check() const {
  const char* op = "Rotary";
  check_heads(op, heads, kv_heads, head_dim);
  CHECK(head_dim % 2 == 0, "{}: head_dim must be even, got {}", op, head_dim);
  CHECK(seq > 0 && first_position >= 0, "{}: seq {} and first_position {} must be positive and not negative",
        op, seq, first_position);
  Operand(op, "qkv", qkv).is_float().rank(2);
  Operand(op, "qkv", qkv).has({qkv.dim(0), (heads + 2 * kv_heads) * head_dim});
  Operand(op, "cos", cos).is(DType::fp32).rank(2);
  Operand(op, "cos", cos).has({cos.dim(0), head_dim / 2});
  Operand(op, "sin", sin).is(DType::fp32).has(cos.shape());
  if (documents.defined()) Operand(op, "documents", documents).is(DType::int32).numel(qkv.dim(0));
  if (positions.defined()) {
    Operand(op, "positions", positions).is(DType::int32).numel(qkv.dim(0));
    CHECK(!documents.defined(), "{}: rows have positions or documents, not both", op);
    return;
  }
  const int64_t last = first_position + std::min(seq, qkv.dim(0));
  CHECK(last <= cos.dim(0), "{}: position {} needed, cos has {}", op, last - 1, cos.dim(0));
}
CLEAVE_LAUNCH(Rotary)

namespace {

void check_attention(const char* name, const AttentionForward& op) {
  check_heads(name, op.heads, op.kv_heads, op.head_dim);
  CHECK(op.mask.window >= 0, "{}: a window of {} positions; it must be positive, or 0 for none", name,
        op.mask.window);
  CHECK(op.mask.causal || (op.mask.window == 0 && !op.mask.documents.defined()),
        "{}: windows and documents are of causal attention only", name);
  check_cap(name, op.cap);
  const AttentionDropout& d = op.dropout;
  CHECK(d.p >= 0 && d.p < 1, "{}: dropout {} must be in [0, 1)", name, d.p);
  CHECK(d.p == 0 || (d.first_head >= 0 && d.first_head + op.heads <= d.all_heads),
        "{}: dropout of heads {} to {} of {}", name, d.first_head, d.first_head + op.heads - 1, d.all_heads);
  const Tensor& documents = op.mask.documents;
  if (documents.defined()) Operand(name, "documents", documents).is(DType::int32).has({op.batch, op.seq});
  const int64_t rows = op.batch * op.seq, width = op.heads * op.head_dim;
  Operand(name, "qkv", op.qkv).is_float().has({rows, width + 2 * op.kv_heads * op.head_dim});
  Operand(name, "y", op.y).is(op.qkv.dtype()).has({rows, width});
  Operand(name, "lse", op.lse).is(DType::fp32).numel(rows * op.heads);
}

}  // namespace

void AttentionForward::check() const {
  const char* op = "AttentionForward";
  check_attention(op, *this);
  Operand(op, "y", y).no_overlap_with("qkv", qkv);
}
CLEAVE_LAUNCH(AttentionForward)

void AttentionBackward::check() const {
  const char* op = "AttentionBackward";
  check_attention(op, forward);
  const Tensor& qkv = forward.qkv;
  Operand(op, "dqkv", dqkv).is(qkv.dtype()).has(qkv.shape()).no_overlap_with("qkv", qkv);
  Operand(op, "dy", dy).is(qkv.dtype()).has(forward.y.shape());
}
CLEAVE_LAUNCH(AttentionBackward)

namespace {

void check_kept(const char* op, const Tensor& keys, const Tensor& values, const Tensor& qkv, int64_t heads,
                const TextRows& rows) {
  Operand(op, "keys", keys).is_float().rank(4);
  Operand(op, "values", values).is(keys.dtype()).has(keys.shape()).no_overlap_with("keys", keys);
  check_heads(op, heads, keys.dim(1), keys.dim(3));
  Operand(op, "qkv", qkv).is(keys.dtype()).rank(2);
  Operand(op, "qkv", qkv).has({qkv.dim(0), (heads + 2 * keys.dim(1)) * keys.dim(3)});
  Operand(op, "texts", rows.texts).is(DType::int32).numel(qkv.dim(0));
  Operand(op, "positions", rows.positions).is(DType::int32).numel(qkv.dim(0));
}

}  // namespace

void WriteKvCache::check() const {
  const char* op = "WriteKvCache";
  check_kept(op, keys, values, qkv, heads, rows);
  Operand(op, "keys", keys).no_overlap_with("qkv", qkv);
  Operand(op, "values", values).no_overlap_with("qkv", qkv);
}
CLEAVE_LAUNCH(WriteKvCache)

void KvCacheAttention::check() const {
  const char* op = "KvCacheAttention";
  check_kept(op, keys, values, qkv, heads, rows);
  CHECK(window >= 0, "{}: a window of {} positions; it must be positive, or 0 for none", op, window);
  check_cap(op, cap);
  Operand(op, "y", y).is(qkv.dtype()).has({qkv.dim(0), heads * keys.dim(3)});
  Operand(op, "y", y)
      .no_overlap_with("qkv", qkv)
      .no_overlap_with("keys", keys)
      .no_overlap_with("values", values);
}
CLEAVE_LAUNCH(KvCacheAttention)

}  // namespace cleave::kernels
