// Attention cases: whole and partial blocks of queries and keys (8, 32, 64 and 128 rows); head dims that fill
// vectors and that do not; windows of one position, inside a block, over several and over all; one document
// per position, documents that end inside blocks, and both; dropout of rows at any place in a block of random
// numbers; soft caps that hardly bend scores and that bend all of them, with explicit scales; heads wider
// than 128.
#pragma once
#include <cstdint>
#include <vector>

namespace cleave::kernels {

struct AttentionCase {
  int64_t batch, seq, heads, kv_heads, head_dim;
  int64_t window = 0, documents = 0;  // per sequence; 0: no mask of this kind
  float dropout = 0;
  bool causal = true;
  float cap = 0, scale = 0;
};
inline constexpr AttentionCase kAttentionCases[] = {{1, 1, 1, 1, 1},
                                                    {2, 64, 2, 2, 64},
                                                    {1, 65, 2, 1, 32},
                                                    {1, 130, 3, 3, 20},
                                                    {2, 49, 4, 2, 16},
                                                    {1, 97, 1, 1, 80},
                                                    {1, 48, 2, 2, 96},
                                                    {1, 63, 1, 1, 88},
                                                    {1, 128, 1, 1, 72},
                                                    {1, 129, 2, 1, 96},
                                                    {1, 200, 1, 1, 128},
                                                    {2, 257, 4, 2, 128},
                                                    {1, 70, 2, 1, 64, 1},
                                                    {1, 200, 2, 2, 20, 7},
                                                    {2, 257, 4, 2, 128, 64},
                                                    {1, 300, 2, 1, 72, 100},
                                                    {1, 129, 1, 1, 96, 128},
                                                    {1, 64, 1, 1, 32, 64},
                                                    {1, 130, 2, 2, 16, 0, 130},
                                                    {2, 300, 2, 1, 64, 0, 5},
                                                    {1, 400, 2, 2, 128, 0, 2},
                                                    {1, 260, 1, 1, 80, 0, 3},
                                                    {2, 300, 2, 1, 64, 70, 3},
                                                    {2, 70, 3, 3, 20, 0, 0, 0.3f},
                                                    {1, 129, 4, 2, 64, 33, 3, 0.1f},
                                                    {2, 97, 4, 2, 20, 0, 0, 0, false},
                                                    {1, 260, 2, 2, 64, 0, 0, 0.2f, false},
                                                    {3, 1, 1, 1, 8, 0, 0, 0, false},
                                                    {2, 70, 4, 2, 20, 0, 0, 0, true, 50, 0.3f},
                                                    {1, 130, 2, 1, 64, 33, 0, 0, true, 1.5f, 0},
                                                    {2, 97, 2, 2, 32, 0, 3, 0.2f, true, 0.5f, 0.25f},
                                                    {1, 65, 2, 1, 40, 0, 0, 0, false, 2, 0},
                                                    {1, 70, 2, 1, 256, 0, 0, 0, true, 0, 0},
                                                    {1, 130, 2, 1, 256, 50, 0, 0, true, 3, 0.1f},
                                                    {1, 97, 1, 1, 200, 0, 2, 0.1f, true, 0, 0.05f}};

// Document start for each position: `documents` of about equal length, different in each sequence.
inline std::vector<double> document_starts(int64_t batch, int64_t seq, int64_t documents) {
  std::vector<double> starts(size_t(batch * seq), 0.0);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t k = 1; k < documents; ++k)
      for (int64_t i = k * (seq - b) / documents + b; i < seq; ++i)
        starts[size_t(b * seq + i)] = double(k * (seq - b) / documents + b);
  return starts;
}

}  // namespace cleave::kernels
