// Sizes of attention: whole and broken blocks of queries and keys (of 8, 32, 64 and 128 rows), head widths
// that fill vectors and that do not.
#pragma once
#include <cstdint>

namespace cleave {

struct AttentionCase {
  int64_t batch, seq, heads, kv_heads, head_dim;
};
inline constexpr AttentionCase kAttentionCases[] = {
    {1, 1, 1, 1, 1},    {2, 64, 2, 2, 64},  {1, 65, 2, 1, 32},   {1, 130, 3, 3, 20},
    {2, 49, 4, 2, 16},  {1, 97, 1, 1, 80},  {1, 48, 2, 2, 96},   {1, 63, 1, 1, 88},
    {1, 128, 1, 1, 72}, {1, 129, 2, 1, 96}, {1, 200, 1, 1, 128}, {2, 257, 4, 2, 128}};

}  // namespace cleave
