#include "model/attention.h"

#include "device/copy.h"
#include "kernels/attention.h"
#include "kernels/rotary.h"

namespace cleave {

Attention::Attention(const Sizes& sizes, const SequenceAxis& axis, std::shared_ptr<const RopeTable> rope)
    : sizes_(sizes),
      axis_(axis),
      positions_(axis.positions(sizes.seq).size()),
      heads_(axis.heads(sizes.heads, sizes.kv_heads)),
      rope_(std::move(rope)) {}

HeadGroups Attention::qkv_groups() const {
  const int64_t kv = sizes_.kv_heads * sizes_.head_dim;
  return {{width(), kv, kv}};
}

Attention::Kept Attention::keep(Saved& saved, Arena& arena, int64_t rows, DType type) const {
  const int64_t n = axis_.size(), all = rows * n;
  Kept k;
  k.qkv = saved.keep(arena, type, {all, qkv_width() / n});
  k.y = saved.keep(arena, type, {all, width() / n});
  k.lse = saved.keep(arena, DType::fp32, {all / sizes_.seq, heads_.heads, sizes_.seq});
  k.out = n == 1 ? k.y : saved.keep(arena, type, {rows, width()});
  return k;
}

Attention::Kept Attention::kept(const Saved& saved, int& next) const {
  Kept k;
  k.qkv = saved[next++], k.y = saved[next++], k.lse = saved[next++];
  k.out = axis_.size() == 1 ? k.y : saved[next++];
  return k;
}

Tensor Attention::input(const Kept& kept, Arena& scratch) const {
  if (axis_.size() == 1) return kept.qkv;
  return scratch.take(kept.qkv.dtype(), {kept.out.dim(0), qkv_width()});
}

// The table is the model's, in host memory; the kernel reads a copy where the activations are.
void Attention::rotate(Tensor qkv, bool inverse, Arena& scratch, Stream& stream) const {
  if (!rope_) return;
  const Shape shape{rope_->positions, rope_->half};
  const Tensor cos = scratch.take(DType::fp32, shape), sin = scratch.take(DType::fp32, shape);
  auto host = [&](const std::vector<float>& v) {
    return Tensor(const_cast<float*>(v.data()), DType::fp32, shape, MemoryKind::host);
  };
  copy(cos, host(rope_->cos), stream);
  copy(sin, host(rope_->sin), stream);
  launch(Rotary{.qkv = qkv,
                .cos = cos,
                .sin = sin,
                .seq = sizes_.seq,
                .heads = heads_.heads,
                .kv_heads = heads_.kv_heads,
                .head_dim = sizes_.head_dim,
                .inverse = inverse},
         stream);
}

void Attention::forward(const Kept& kept, Tensor qkv, Arena& scratch, Stream& stream,
                        std::string_view what) const {
  axis_.to_heads(kept.qkv, qkv, qkv_groups(), positions_, scratch, stream, what);
  rotate(kept.qkv, false, scratch, stream);
  launch(AttentionForward{.y = kept.y,
                          .lse = kept.lse,
                          .qkv = kept.qkv,
                          .batch = batch(kept),
                          .seq = sizes_.seq,
                          .heads = heads_.heads,
                          .kv_heads = heads_.kv_heads,
                          .head_dim = sizes_.head_dim},
         stream);
  axis_.to_tokens(kept.out, kept.y, {{width()}}, positions_, scratch, stream, what);
}

void Attention::backward(Tensor dqkv, Tensor dout, const Kept& kept, Arena& scratch, Stream& stream,
                         std::string_view what) const {
  const int64_t mark = scratch.mark();
  const Tensor dy = axis_.twin_of(dout, scratch), dheads = axis_.twin_of(dqkv, scratch);
  axis_.to_heads(dy, dout, {{width()}}, positions_, scratch, stream, what);
  launch(AttentionBackward{.dqkv = dheads,
                           .dy = dy,
                           .y = kept.y,
                           .lse = kept.lse,
                           .qkv = kept.qkv,
                           .batch = batch(kept),
                           .seq = sizes_.seq,
                           .heads = heads_.heads,
                           .kv_heads = heads_.kv_heads,
                           .head_dim = sizes_.head_dim},
         stream);
  rotate(dheads, true, scratch, stream);
  axis_.to_tokens(dqkv, dheads, qkv_groups(), positions_, scratch, stream, what);
  scratch.release(mark);
}

}  // namespace cleave
