#include "model/attention.h"

#include "kernels/kv_cache.h"
#include "kernels/rotary.h"
#include "model/row_dropout.h"

namespace cleave::model {

Attention::Attention(const Sizes& sizes, const tensor_parallel::SequenceAxis& axis)
    : sizes_(sizes),
      axis_(axis),
      positions_(axis.positions(sizes.seq).size()),
      heads_(axis.heads(sizes.heads, sizes.kv_heads)) {}

tensor_parallel::HeadGroups Attention::qkv_groups() const {
  const int64_t kv = sizes_.kv_heads * sizes_.head_dim;
  return {.widths = {width(), kv, kv}, .copies = {1, heads_.copies, heads_.copies}};
}

Attention::Kept Attention::keep(Arena& arena, int64_t rows, DType type) const {
  const int64_t n = axis_.size(), all = rows * n;
  Kept k;
  k.qkv = arena.take(type, {all, axis_.twin_width(qkv_groups())});
  k.y = arena.take(type, {all, width() / n});
  k.lse = arena.take(DType::fp32, {all / sizes_.seq, heads_.heads, sizes_.seq});
  k.out = n == 1 ? k.y : arena.take(type, {rows, width()});
  return k;
}

Attention::Kept Attention::keep_rows(Arena& arena, int64_t rows, DType type) const {
  Kept k;
  k.qkv = arena.take(type, {rows, qkv_width()});
  k.out = k.y = arena.take(type, {rows, width()});
  return k;
}

Tensor Attention::input(const Kept& kept, Arena& scratch) const {
  if (axis_.size() == 1) return kept.qkv;
  return scratch.take(kept.qkv.dtype(), {kept.out.dim(0), qkv_width()});
}

void Attention::rotate(Tensor qkv, bool inverse, const Call& call) const {
  if (call.rotation.empty()) return;
  kernels::launch(kernels::Rotary{.qkv = qkv,
                                  .cos = call.rotation[0],
                                  .sin = call.rotation[1],
                                  .documents = call.documents,
                                  .seq = sizes_.seq,
                                  .heads = heads_.heads,
                                  .kv_heads = heads_.kv_heads,
                                  .head_dim = sizes_.head_dim,
                                  .inverse = inverse},
                  call.stream);
}

kernels::AttentionDropout Attention::dropout(const Call& call) const {
  if (sizes_.dropout == 0 || !call.trained) return {};
  return {.p = sizes_.dropout,
          .philox = dropout_numbers(*call.trained, fmt::format("{}.attn_weights", call.what)),
          .first_sample = call.trained->first_sample,
          .first_head = sizes_.first_head + axis_.rank() * heads_.heads,
          .all_heads = sizes_.all_heads};
}

kernels::AttentionForward Attention::product(const Kept& kept, const Call& call) const {
  return {.y = kept.y,
          .lse = kept.lse,
          .qkv = kept.qkv,
          .batch = batch(kept),
          .seq = sizes_.seq,
          .heads = heads_.heads,
          .kv_heads = heads_.kv_heads,
          .head_dim = sizes_.head_dim,
          .scale = sizes_.scale,
          .cap = sizes_.cap,
          .mask = {sizes_.causal, sizes_.window, call.documents},
          .dropout = dropout(call)};
}

void Attention::forward(const Kept& kept, Tensor qkv, const Call& call) const {
  axis_.to_heads(kept.qkv, qkv, qkv_groups(), positions_, call.scratch, call.stream, call.what);
  rotate(kept.qkv, false, call);
  kernels::launch(product(kept, call), call.stream);
  axis_.to_tokens(kept.out, kept.y, {{width()}}, positions_, call.scratch, call.stream, call.what);
}

void Attention::forward(const Kept& kept, const KvCache& cache, const Call& call) const {
  if (!call.rotation.empty())
    kernels::launch(kernels::Rotary{.qkv = kept.qkv,
                                    .cos = call.rotation[0],
                                    .sin = call.rotation[1],
                                    .positions = cache.rows.positions,
                                    .heads = sizes_.heads,
                                    .kv_heads = sizes_.kv_heads,
                                    .head_dim = sizes_.head_dim},
                    call.stream);
  kernels::launch(kernels::WriteKvCache{.keys = cache.keys,
                                        .values = cache.values,
                                        .qkv = kept.qkv,
                                        .rows = cache.rows,
                                        .heads = sizes_.heads},
                  call.stream);
  kernels::launch(kernels::KvCacheAttention{.y = kept.y,
                                            .qkv = kept.qkv,
                                            .keys = cache.keys,
                                            .values = cache.values,
                                            .rows = cache.rows,
                                            .heads = sizes_.heads,
                                            .window = sizes_.window,
                                            .scale = sizes_.scale,
                                            .cap = sizes_.cap},
                  call.stream);
}

void Attention::backward(Tensor dqkv, Tensor dout, const Kept& kept, const Call& call) const {
  const int64_t mark = call.scratch.mark();
  const Tensor dy = axis_.twin_of(dout, {{width()}}, call.scratch),
               dheads = axis_.twin_of(dqkv, qkv_groups(), call.scratch);
  axis_.to_heads(dy, dout, {{width()}}, positions_, call.scratch, call.stream, call.what);
  kernels::launch(kernels::AttentionBackward{dheads, dy, product(kept, call)}, call.stream);
  rotate(dheads, true, call);
  axis_.to_tokens(dqkv, dheads, qkv_groups(), positions_, call.scratch, call.stream, call.what);
  call.scratch.release(mark);
}

}  // namespace cleave::model
