#include "model/row_dropout.h"

#include "kernels/activation.h"

namespace cleave::model {

Philox dropout_numbers(const Position& at, std::string_view where) {
  return {at.seed, hash_name(where) ^ (uint64_t(at.step) * 0x9E3779B97F4A7C15ull)};
}

void RowDropout::run(Tensor y, Tensor x, const Position& at, std::string_view where, Stream& stream) const {
  if (p == 0) return;
  const Philox philox = dropout_numbers(at, where);
  const Range mine = axes.sequence.positions(seq);
  const int64_t rows = x.dim(0), first = axes.tensor.cuts_rows() ? axes.tensor.rank() * rows : 0;
  // Loops over runs of adjacent rows in the global batch: one run for whole positions.
  for (int64_t row = 0, next = 0; row < rows; row = next) {
    const int64_t sample = (first + row) / mine.size(), position = (first + row) % mine.size();
    next = mine.size() == seq ? rows : std::min(rows, row + mine.size() - position);
    kernels::launch(
        kernels::Dropout{.y = y.rows({row, next}),
                         .x = x.rows({row, next}),
                         .p = p,
                         .philox = philox,
                         .offset = ((at.first_sample + sample) * seq + mine.begin + position) * x.dim(1)},
        stream);
  }
}

}  // namespace cleave::model
