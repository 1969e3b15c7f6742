#include "zero/gradient_form.h"

#include <cmath>
#include <span>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/exact.h"

namespace cleave::zero {
namespace {

// Sum of the squared multiples of 2^-grid, given by these words (SumIntegerSquares). Carries are propagated
// first, so that the result is a function of the sum.
double square_of(std::span<const int64_t> words, int grid) {
  uint64_t carry = 0;
  double sum = 0;
  for (int w = 0; w < 4; ++w) {
    const uint64_t word = uint64_t(words[size_t(w)]) + carry;
    const uint64_t here = w < 3 ? word & 0xffffffffu : word;
    carry = word >> 32;
    sum += std::ldexp(double(here), 32 * w - 2 * grid);
  }
  return sum;
}

// Floating-point gradients: layers add to the sum directly, and the update reads it directly.
class Floats final : public GradientForm {
 public:
  double left_scale(double loss_scale) const override { return loss_scale; }
  bool takes_any_number() const override { return true; }
  double grid_of_losses() const override { return 0; }
  void begin_step(double, Stream&) override {}
  int64_t apart_numel(int64_t) const override { return 0; }
  void encode(Tensor, Tensor, bool, Stream&) const override {}
  void add(Tensor sum, Tensor x, Stream& stream) const override {
    kernels::launch(kernels::Axpy{.y = sum, .x = x}, stream);
  }
  int64_t decoded_numel(int64_t) const override { return 0; }
  void decode(Tensor, Tensor, Stream&) const override {}

  DType type_of_squares() const override { return DType::fp64; }
  int64_t squares_of_part() const override { return 1; }
  int64_t squares_of_all() const override { return 0; }
  void square(Tensor squares, Tensor sum, Stream& stream) const override {
    kernels::launch(kernels::SumSquares{.out = squares, .x = sum}, stream);
  }
  void square_all(Tensor, Stream&) const override {}
  std::vector<double> squared_norms(Tensor squares, Stream& compute) const override {
    return to_host<double>(squares, compute);
  }
};

// Exact sums: int64 multiples of 2^-grid; a visit's gradient is rounded to them once.
class GridIntegers final : public GradientForm {
 public:
  GridIntegers(int grid, double limit) : grid_(grid), limit_(limit) {}

  void commit(Memory& memory) override {
    overflows_ = memory.allocate(MemoryKind::device, Category::buckets, DType::int64, {1}, "overflows");
  }
  double left_scale(double) const override { return 1; }  // rounding has removed the loss scale
  bool takes_any_number() const override { return false; }
  double grid_of_losses() const override { return 0x1p-40; }
  void begin_step(double unscale, Stream& compute) override {
    kernels::launch(kernels::Fill{.y = overflows_}, compute);
    factor_ = std::ldexp(unscale, grid_);
  }
  int64_t apart_numel(int64_t numel) const override { return numel; }
  void encode(Tensor sum, Tensor apart, bool adds, Stream& compute) const override {
    kernels::launch(
        kernels::RoundToGrid{
            .y = sum, .bad = overflows_, .x = apart, .factor = factor_, .limit = limit_, .accumulate = adds},
        compute);
  }
  void add(Tensor sum, Tensor x, Stream& stream) const override {
    kernels::launch(kernels::AddIntegers{.y = sum, .x = x}, stream);
  }
  int64_t decoded_numel(int64_t numel) const override { return numel; }
  void decode(Tensor gradient, Tensor sum, Stream& stream) const override {
    const auto multiple = float(std::ldexp(1.0, -grid_));
    kernels::launch(kernels::FromGrid{.y = gradient, .x = sum, .scale = multiple}, stream);
  }

  DType type_of_squares() const override { return DType::int64; }
  int64_t squares_of_part() const override { return 4; }  // words of SumIntegerSquares
  int64_t squares_of_all() const override { return 1; }   // nonzero after an overflow
  void square(Tensor squares, Tensor sum, Stream& stream) const override {
    kernels::launch(kernels::SumIntegerSquares{.out = squares, .x = sum}, stream);
  }
  void square_all(Tensor overflows, Stream& compute) const override { copy(overflows, overflows_, compute); }
  std::vector<double> squared_norms(Tensor squares, Stream& compute) const override {
    const std::vector<int64_t> words = to_host<int64_t>(squares, compute);
    std::vector<double> norms(words.size() / 4, std::nan(""));
    for (size_t i = 0; words.back() == 0 && i < norms.size(); ++i)
      norms[i] = square_of(std::span(words).subspan(4 * i, 4), grid_);
    return norms;
  }

 private:
  int grid_;
  double limit_, factor_ = 1;
  Buffer overflows_;  // int64 [1]
};

}  // namespace

std::unique_ptr<GradientForm> GradientForm::of(const StoreOptions& options) {
  if (options.exact()) return std::make_unique<GridIntegers>(options.grid, options.limit);
  return std::make_unique<Floats>();
}

}  // namespace cleave::zero
