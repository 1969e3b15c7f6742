#include "kernels/rotary.h"

#include "kernels/cuda/device.cuh"

namespace cleave::kernels::gpu {
namespace {

// A row is the part of a qkv row that belongs to one rotated head; its columns are the points.
template <class T>
struct Turn {
  T* qkv;
  const float *cos, *sin;
  const int32_t *documents, *positions;
  int64_t half, stride, first_position;
  Divisor heads, seq;
  float sign;

  template <int N>
  __device__ void operator()(uint32_t turned, int column, Count<N>) const {
    const uint32_t row = heads.quotient(turned), head = turned - row * heads.value();
    const int64_t begin = documents ? documents[row] : 0;
    const int64_t position = positions ? positions[row] : first_position + seq.rest(row) - begin;
    const int64_t at = position * half + column;
    T *first = qkv + row * stride + head * 2 * half + column, *second = first + half;
    float a[N], b[N], c[N], s[N];
    load(a, first);
    load(b, second);
    load(c, cos + at);
    load(s, sin + at);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float x = a[j], turn = s[j] * sign;
      a[j] = fmaf(-b[j], turn, x * c[j]);
      b[j] = fmaf(x, turn, b[j] * c[j]);
    }
    store(first, a);
    store(second, b);
  }
};

}  // namespace

void run(const Rotary& op, Stream& stream) {
  const int64_t half = op.head_dim / 2, turned = op.heads + op.kv_heads;
  with_type(op.qkv.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each_of_rows<kPackOf<T>>(
        cuda_queue(stream), op.qkv.dim(0) * turned, half,
        half % kPackOf<T> == 0 && aligned({op.qkv, op.cos, op.sin}), "Rotary",
        Turn<T>{as<T>(op.qkv), as<float>(op.cos), as<float>(op.sin),
                op.documents.defined() ? as<int32_t>(op.documents) : nullptr,
                op.positions.defined() ? as<int32_t>(op.positions) : nullptr, half, op.qkv.dim(1),
                op.first_position, Divisor(turned), Divisor(op.seq), op.inverse ? -1.0f : 1.0f});
  });
}

}  // namespace cleave::kernels::gpu
