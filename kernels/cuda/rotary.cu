#include "kernels/rotary.h"

#include "kernels/cuda/device.cuh"

namespace cleave::gpu {
namespace {

// Counts the points of all turned heads: `half` of a head, `turned` of a row.
template <class T>
struct Turn {
  T* qkv;
  const float *cos, *sin;
  int64_t half, turned, stride, seq, first_position;
  float sign;

  template <int N>
  __device__ void operator()(int64_t i, Count<N>) const {
    const int64_t row = i / turned, point = i % turned, head = point / half, column = point % half;
    const int64_t at = (first_position + row % seq) * half + column;
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
  const int64_t half = op.head_dim / 2, turned = (op.heads + op.kv_heads) * half;
  with_type(op.qkv.dtype(), [&](auto t) {
    using T = decltype(t);
    for_each(cuda_queue(stream), op.qkv.dim(0) * turned,
             half % kPack == 0 && aligned({op.qkv, op.cos, op.sin}), "Rotary",
             Turn<T>{as<T>(op.qkv), as<float>(op.cos), as<float>(op.sin), half, turned, op.qkv.dim(1), op.seq,
                     op.first_position, op.inverse ? -1.0f : 1.0f});
  });
}

}  // namespace cleave::gpu
