#include "model/row_dropout.h"

#include "kernels/activation.h"

namespace cleave {

void RowDropout::run(Tensor y, Tensor x, const Position& at, std::string_view where, Stream& stream) const {
  if (p == 0) return;
  const int64_t rows = x.dim(0), first = axis.cuts_rows() ? axis.rank() * rows : 0;
  launch(Dropout{.y = y,
                 .x = x,
                 .p = p,
                 .philox = {at.seed, hash_name(where) ^ (uint64_t(at.step) * 0x9E3779B97F4A7C15ull)},
                 .offset = (at.first_sample * seq + first) * x.dim(1)},
         stream);
}

}  // namespace cleave
