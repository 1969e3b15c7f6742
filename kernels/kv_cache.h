// Attention of text generation with a KV cache: only the rows of new positions are computed.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// Assignment of rows, in any order: row r is position positions[r] of text texts[r]. int32 [rows] each. A row
// of text -1 is padding: it is not stored and attends to nothing.
struct TextRows {
  Tensor texts, positions;
};

// Stores keys and values: with t = texts[r] and p = positions[r], keys[t, h, p, :] and values[t, h, p, :]
// become the key and value of head h in row r of qkv. qkv: [rows, (heads + 2 * kv_heads) * head_dim] as in
// AttentionForward; keys, values: [texts, kv_heads, positions, head_dim] of its type. Two rows must not have
// the same text and position.
struct WriteKvCache {
  Tensor keys, values;
  Tensor qkv;
  TextRows rows;
  int64_t heads = 1;
  void check() const;
  Traffic traffic() const { return {qkv, qkv}; }
};
CLEAVE_KERNEL(WriteKvCache)

// y [rows, heads * head_dim]: attention of each query row of qkv over the cached keys and values of its text
// up to its own position; only over the last `window` positions if window is not 0; zero for padding. Query
// head h reads key/value head h / (heads / kv_heads). Scale and cap are those of AttentionForward. The bits
// of a row do not depend on the other rows.
struct KvCacheAttention {
  Tensor y;
  Tensor qkv, keys, values;
  TextRows rows;
  int64_t heads = 1, window = 0;
  float scale = 0, cap = 0;
  void check() const;
  Traffic traffic() const { return {y, keys, values}; }
};
CLEAVE_KERNEL(KvCacheAttention)

}  // namespace cleave::kernels
