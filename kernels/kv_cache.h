// Attention of texts that grow: keys and values of all positions are kept, and only the rows of new ones are
// computed.
#pragma once
#include "kernels/launch.h"

namespace cleave::kernels {

// Where rows belong, in any order: row r is position positions[r] of text texts[r]. int32 [rows] each. A row
// of text -1 is padding: nothing of it is kept, and it attends to nothing.
struct TextRows {
  Tensor texts, positions;
};

// Keeps the keys and values of rows: keys[t, h, p, :] and values[t, h, p, :] become what row r of qkv has of
// key/value head h, where t = texts[r] and p = positions[r]. qkv: [rows, (heads + 2 * kv_heads) * head_dim]
// as AttentionForward has it; keys, values: [texts, kv_heads, positions, head_dim] of its type. No two rows
// have the same text and position.
struct WriteKvCache {
  Tensor keys, values;
  Tensor qkv;
  TextRows rows;
  int64_t heads = 1;
  void check() const;
  Traffic traffic() const { return {qkv, qkv}; }
};
CLEAVE_KERNEL(WriteKvCache)

// y [rows, heads * head_dim]: the queries of each row of qkv, over the kept keys and values of its text, from
// the first position on, or of the last `window` ones where that is not 0, up to the row's own; zero for
// padding. Query head h reads key/value head h / (heads / kv_heads). Scale and cap are AttentionForward's. A
// row has the same bits whichever rows are beside it.
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
