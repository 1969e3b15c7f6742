#include "kernels/checksum.h"

#include <atomic>

#include "kernels/checks.h"
#include "kernels/checksum_mix.h"
#include "kernels/cpu/team_loop.h"
#include "kernels/launched.h"

namespace cleave::kernels {

void Checksum::check() const {
  Operand("Checksum", "out", out).is(DType::int64).numel(1);
  Operand("Checksum", "x", x).no_overlap_with("out", out);
}
CLEAVE_LAUNCH(Checksum)

namespace cpu {
namespace {

constexpr int64_t kFewSummed = 1 << 15;  // elements; fewer run on one thread

template <class Word>
uint64_t sum_of(const void* data, int64_t numel, int64_t first) {
  const auto* x = static_cast<const Word*>(data);
  std::atomic<uint64_t> sum{0};
  team_loop(numel, numel > kFewSummed, [=, &sum](int64_t begin, int64_t end) {
    uint64_t here = 0;
    for (int64_t i = begin; i < end; ++i) here += checksum_term(uint32_t(first + i), x[i]);
    sum += here;
  });
  return sum;
}

uint64_t sum_of_bits(const Tensor& x, int64_t first) {
  switch (size_of(x.dtype())) {
    case 1:
      return sum_of<uint8_t>(x.raw(), x.numel(), first);
    case 2:
      return sum_of<uint16_t>(x.raw(), x.numel(), first);
    case 4:
      return sum_of<uint32_t>(x.raw(), x.numel(), first);
    default:
      return sum_of<uint32_t>(x.raw(), 2 * x.numel(), 2 * first);
  }
}

}  // namespace

void run(const Checksum& op) {
  int64_t& out = *op.out.as<int64_t>();
  out = int64_t(uint64_t(out) + sum_of_bits(op.x, op.first));
}

}  // namespace cpu
}  // namespace cleave::kernels
