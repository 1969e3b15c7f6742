#include "kernels/cpu/parallel.h"

namespace cleave::kernels::cpu::CLEAVE_ISA {
namespace {

template <class T>
void embed_row(const EmbeddingArgs& args, int64_t row) {
  const int64_t width = args.width, entry = args.tokens[row] - args.first_token;
  const bool here = entry >= 0 && entry < args.table_rows;
  T* y = static_cast<T*>(args.y.data) + row * width;
  const T* token = static_cast<const T*>(args.wte.data) + (here ? entry : 0) * width;
  const S16 factor = splat(here ? 1.0f : 0.0f);
  if (!args.wpe.data)
    return for_vectors(0, width, [=](int64_t i, auto n) { store(y + i, load(token + i, n) * factor, n); });
  const int64_t position = args.positions ? args.positions[row] : args.first_position + row % args.seq;
  const T* learned = static_cast<const T*>(args.wpe.data) + position * width;
  for_vectors(0, width, [=](int64_t i, auto n) {
    store(y + i, fma(load(token + i, n), factor, load(learned + i, n)), n);
  });
}

// out[i] = (out[i]) + dy[row_of(0), i] + dy[row_of(1), i] + ...
template <class T, class D, class RowOf>
CLEAVE_INLINE void add_rows(T* out, const D* dy, int64_t width, int64_t count, bool accumulate,
                            RowOf row_of) {
  for_vectors(0, width, [&](int64_t i, auto n) {
    F16 sum = accumulate ? load(out + i, n) : zero();
    for (int64_t k = 0; k < count; ++k) sum = sum + load(dy + row_of(k) * width + i, n);
    store(out + i, sum, n);
  });
}

template <class T, class D>
void token_grad(const EmbeddingGradArgs& args) {
  const D* dy = static_cast<const D*>(args.dy.data);
  parallel_in_turn(args.group_count, 16, args.rows * args.width > kSerialNumel, [&](int64_t g) {
    const int32_t* rows = args.order + args.groups[g];
    T* out = static_cast<T*>(args.dwte.data) + (args.tokens[rows[0]] - args.first_token) * args.width;
    add_rows(out, dy, args.width, args.groups[g + 1] - args.groups[g], args.accumulate_wte,
             [=](int64_t k) { return int64_t{rows[k]}; });
  });
}

template <class T, class D>
void position_grad(const EmbeddingGradArgs& args) {
  const D* dy = static_cast<const D*>(args.dy.data);
  const int64_t seq = args.seq, used = args.rows < seq ? args.rows : seq;
  parallel_rows(used, args.width * (args.rows / (used ? used : 1)), [&](int64_t first) {
    T* out = static_cast<T*>(args.dwpe.data) + (args.first_row + first) % seq * args.width;
    const int64_t count = (args.rows - first + seq - 1) / seq;
    add_rows(out, dy, args.width, count, args.accumulate_wpe, [=](int64_t k) { return k * seq + first; });
  });
}

}  // namespace

void embedding(const EmbeddingArgs& args) {
  with_type(args.y.type, [&](auto t) {
    parallel_rows(args.rows, args.width, [&](int64_t row) { embed_row<decltype(t)>(args, row); });
  });
}

void embedding_grad(const EmbeddingGradArgs& args) {
  with_type(args.dy.type, [&](auto d) {
    if (args.dwte.data)
      with_type(args.dwte.type, [&](auto t) { token_grad<decltype(t), decltype(d)>(args); });
    if (args.dwpe.data)
      with_type(args.dwpe.type, [&](auto t) { position_grad<decltype(t), decltype(d)>(args); });
  });
}

}  // namespace cleave::kernels::cpu::CLEAVE_ISA
