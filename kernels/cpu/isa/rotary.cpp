#include "kernels/cpu/parallel.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

template <class T>
void turn_row(const RotaryArgs& args, int64_t row) {
  const int64_t begin = args.documents ? args.documents[row] : 0;
  const int64_t position =
      args.positions ? args.positions[row] : args.first_position + row % args.seq - begin;
  const int64_t half = args.head_dim / 2, at = position * half;
  const float *cos = args.cos + at, *sin = args.sin + at;
  const S16 sign = splat(args.inverse ? -1.0f : 1.0f);
  T* heads = static_cast<T*>(args.qkv.data) + row * args.stride;
  for (int64_t h = 0; h < args.turned_heads; ++h) {
    T *first = heads + h * args.head_dim, *second = first + half;
    for_vectors(0, half, [=](int64_t i, auto n) {
      const F16 a = load(first + i, n), b = load(second + i, n), c = load(cos + i, n),
                s = load(sin + i, n) * sign;
      store(first + i, fnma(b, s, a * c), n);
      store(second + i, fma(a, s, b * c), n);
    });
  }
}

}  // namespace

void rotary(const RotaryArgs& args) {
  with_type(args.qkv.type, [&](auto t) {
    parallel_rows(args.rows, args.turned_heads * args.head_dim,
                  [&](int64_t row) { turn_row<decltype(t)>(args, row); });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
