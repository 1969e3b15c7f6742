// Shared parts of the attention kernels. Scores are in log2 units, for the hardware's 2^x.
#pragma once
#include "kernels/attention.h"
#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {

// Arguments of an op; T is the storage type. The members below locate heads of queries, keys and values.
template <class T>
struct Attention {
  const T *qkv, *y = nullptr, *dy = nullptr;
  T *out = nullptr, *dqkv = nullptr;
  const float* lse = nullptr;    // input of the backward
  float* lse_out = nullptr;      // output of the forward
  const float* delta = nullptr;  // [batch, heads, seq]: sum of dy y over the columns of a head
  int batch, seq, heads, kv_heads, dim;
  // Computed on the host, so they need no registers: row lengths of qkv and of y in elements, the scale for
  // 2^x.
  int64_t joined_row, out_row;
  float log2_scale;
  float scale;
  bool causal = true;  // these three: AttentionMask
  int window = 0;      // 0: no bound
  const int32_t* documents = nullptr;
  AttentionDropout dropout = {};
  float log2_cap = 0;  // in score units; 0: none

  __device__ int64_t stride() const { return joined_row; }
  __device__ int64_t out_stride() const { return out_row; }
  __device__ int kv_head(int head) const { return head / (heads / kv_heads); }
  // Offsets in qkv of the first row of sequence b.
  __device__ int64_t query(int b, int head) const {
    return b * int64_t(seq) * stride() + int64_t(head) * dim;
  }
  __device__ int64_t key(int b, int kv) const { return query(b, heads + kv); }
  __device__ int64_t value(int b, int kv) const { return query(b, heads + kv_heads + kv); }
  // Offset in y and dy; in lse and delta.
  __device__ int64_t output(int b, int head) const {
    return b * int64_t(seq) * out_stride() + int64_t(head) * dim;
  }
  __device__ int64_t row(int b, int head) const { return (int64_t(b) * heads + head) * seq; }
};

// First visible key of a query of sequence b. Every kernel is compiled twice: with kBounded for masks that
// bound this, and without it for the causal mask, where it is a constant without cost. (A loop that starts
// here must still test kBounded itself: if a function returns the first index, nvcc uses more registers.) A
// row beyond the sequence sees the keys of the last row.
template <bool kBounded, class T>
__device__ __forceinline__ int first_key(const Attention<T>& a, int b, int query) {
  if constexpr (kBounded) {
    const int row = min(query, a.seq - 1), in_window = a.window > 0 ? max(row - a.window + 1, 0) : 0;
    return a.documents ? max(in_window, min(a.documents[int64_t(b) * a.seq + row], row)) : in_window;
  } else {
    return 0;
  }
}

// Position after the last query that sees a key; non-decreasing in the key. The bound of a key beyond the
// sequence is the sequence's end.
template <bool kBounded, class T>
__device__ __forceinline__ int query_end(const Attention<T>& a, int b, int key) {
  int high = a.seq;
  if constexpr (kBounded) {
    for (int low = min(key + 1, high); low < high;) {
      const int middle = (low + high) / 2;
      if (first_key<true>(a, b, middle) > key)
        high = middle;
      else
        low = middle + 1;
    }
  }
  return high;
}

// Dropout factor of the weight of a query and a key.
template <class T>
__device__ __forceinline__ float dropout_factor(const Attention<T>& a, int b, int head, int query, int key) {
  const AttentionDropout& d = a.dropout;
  const uint64_t index = d.first_of(b, head, a.seq) + uint64_t(int64_t(query) * a.seq + key);
  const auto words = d.philox.block(index / 4);
  const uint32_t at = uint32_t(index) % 4;
  const uint32_t word = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
  return float(word >> 8) * 0x1p-24f >= d.p ? 1.0f / (1.0f - d.p) : 0.0f;
}

// Calls body(std::bool_constant<kBounded>).
template <class T, class Body>
void with_bounds(const Attention<T>& a, Body body) {
  if (a.window > 0 || a.documents) return body(std::true_type{});
  body(std::false_type{});
}

// Tensor-core kernels, for 16-bit types and head_dim a multiple of 8 up to 128.
template <class T>
void attention_forward(CudaQueue& queue, const Attention<T>& a);
template <class T>
void attention_backward(CudaQueue& queue, const Attention<T>& a);
// Hopper warpgroup kernels: the same types and widths, operands aligned to 16 bytes, scale > 0.
template <class T>
void warpgroup_attention_forward(CudaQueue& queue, const Attention<T>& a);
template <class T>
void warpgroup_attention_backward(CudaQueue& queue, const Attention<T>& a);
// fp32 arithmetic, for any type and head_dim up to kGpuHeadDim.
template <class T>
void plain_attention_forward(CudaQueue& queue, const Attention<T>& a);
template <class T>
void plain_attention_backward(CudaQueue& queue, const Attention<T>& a);

// Calls body(Count<D>) with the smallest compiled width of at least `dim` columns.
template <class Body>
void with_width(int dim, Body body) {
  if (dim <= 64) return body(Count<64>{});
  if (dim <= 80) return body(Count<80>{});
  if (dim <= 96) return body(Count<96>{});
  return body(Count<128>{});
}

}  // namespace cleave::kernels::gpu
