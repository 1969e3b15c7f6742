#include "kernels/cpu/parallel.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

constexpr int64_t kColumns = 256;  // a piece's running sums stay in the first-level cache
constexpr int64_t kRows = 8;       // rows read side by side

template <class T>
void sum_columns(const BiasArgs& args, int64_t begin, int64_t end, float* sums) {
  const T* dy = static_cast<const T*>(args.dy.data);
  const int64_t stride = args.width;
  int64_t row = 0;
  for (; row + kRows <= args.rows; row += kRows) {
    const T* block = dy + row * stride;
    for_vectors(begin, end, [=](int64_t i, auto n) {
      F16 sum = load(sums + (i - begin));
      for (int64_t r = 0; r < kRows; ++r) sum = sum + load(block + r * stride + i, n);
      store(sums + (i - begin), sum);
    });
  }
  for (; row < args.rows; ++row)
    for_vectors(begin, end, [=](int64_t i, auto n) {
      store(sums + (i - begin), load(sums + (i - begin)) + load(dy + row * stride + i, n));
    });
}

}  // namespace

void bias_grad(const BiasArgs& args) {
  const int64_t pieces = (args.width + kColumns - 1) / kColumns;
  parallel_for(pieces, args.rows * args.width > kSerialNumel, [&](int64_t p) {
    const int64_t begin = p * kColumns, end = begin + kColumns < args.width ? begin + kColumns : args.width;
    float sums[kColumns];
    with_type(args.db.type, [&](auto t) {
      auto* db = static_cast<decltype(t)*>(args.db.data);
      const bool accumulate = args.accumulate;
      float* s = sums;
      for_vectors(begin, end,
                  [=](int64_t i, auto n) { store(s + (i - begin), accumulate ? load(db + i, n) : zero()); });
      with_type(args.dy.type, [&](auto d) { sum_columns<decltype(d)>(args, begin, end, s); });
      for_vectors(begin, end, [=](int64_t i, auto n) { store(db + i, load(s + (i - begin)), n); });
    });
  });
}

void round_rows(const RoundArgs& args) {
  with_type(args.y.type, [&](auto t) {
    using T = decltype(t);
    parallel_rows(args.rows, args.width, [&](int64_t row) {
      T* y = static_cast<T*>(args.y.data) + row * args.y_stride;
      const float* x = args.x + row * args.width;
      const bool accumulate = args.accumulate;
      for_vectors(0, args.width, [=](int64_t i, auto n) {
        const F16 v = load(x + i, n);
        store(y + i, accumulate ? v + load(y + i, n) : v, n);
      });
    });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
