#include "kernels/fp8.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(ToFp8);
KERNEL_SUITE(Fp8Matmul);
KERNEL_SUITE(PushFp8History);

constexpr DType kFp8[] = {DType::fp8_e4m3, DType::fp8_e5m2};
constexpr double kInf = std::numeric_limits<double>::infinity();

// A format as defined in the paper: sign, exponent, mantissa.
struct Paper {
  DType type;
  int mantissa, bias;
  double largest;
};
constexpr Paper kPapers[] = {{DType::fp8_e4m3, 3, 7, 448}, {DType::fp8_e5m2, 2, 15, 57344}};

double value_of(const Paper& f, int code) {
  const int exponent = (code & 0x7f) >> f.mantissa, fraction = code & ((1 << f.mantissa) - 1);
  const double x = exponent == 0 ? std::ldexp(fraction, 1 - f.bias - f.mantissa)
                                 : std::ldexp(1 + std::ldexp(fraction, -f.mantissa), exponent - f.bias);
  return code & 0x80 ? -x : x;
}

// Code of the nearest number, by comparison with all numbers; ties to the even code.
int nearest(const Paper& f, double x) {
  static const auto numbers_of = [](const Paper& of) {
    Values all;
    for (int code = 0; code < 0x7f && value_of(of, code) <= of.largest; ++code)
      all.push_back(value_of(of, code));
    return all;
  };
  static const Values e4m3 = numbers_of(kPapers[0]), e5m2 = numbers_of(kPapers[1]);
  if (!std::isfinite(x)) return 0x7f;
  const Values& all = f.type == DType::fp8_e4m3 ? e4m3 : e5m2;
  size_t best = 0;
  for (size_t code = 1; code < all.size(); ++code) {
    const double now = std::fabs(all[code] - std::fabs(x)), then = std::fabs(all[best] - std::fabs(x));
    if (now < then || (now == then && code % 2 == 0)) best = code;
  }
  return int(best) | (std::signbit(x) ? 0x80 : 0);
}

TEST(Fp8, HasTheValuesOfItsFormats) {
  for (const Paper& f : kPapers)
    for (int code = 0; code < 256; ++code) {
      const double got = fp8_values(f.type)[size_t(code)], want = value_of(f, code);
      if (std::fabs(want) <= f.largest)
        EXPECT_EQ(got, want) << name_of(f.type) << " " << code;
      else if (f.type == DType::fp8_e5m2 && (code & 3) == 0)
        EXPECT_EQ(got, code & 0x80 ? -kInf : kInf) << code;
      else
        EXPECT_TRUE(std::isnan(got)) << name_of(f.type) << " " << code;
    }
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (const Paper& f : kPapers) {
    const auto code_of = [&](double x) { return int(to_fp8(float(x), fp8_format(f.type))); };
    for (int code = 0; code < 0x7f && value_of(f, code) <= f.largest; ++code) {
      const double here = value_of(f, code), next = std::min(value_of(f, code + 1), 2 * f.largest);
      for (const double at : {0.0, 0.25, 0.5, 0.5 - 1e-6, 0.5 + 1e-6, 0.75}) {
        const double x = double(float(here + at * (next - here)));
        ASSERT_EQ(code_of(x), nearest(f, x)) << name_of(f.type) << " of " << x;
        ASSERT_EQ(code_of(-x), nearest(f, -x)) << name_of(f.type) << " of " << -x;
      }
    }
    EXPECT_EQ(code_of(1e30), nearest(f, f.largest)) << "cut off";
    EXPECT_EQ(code_of(kInf), 0x7f) << "an overflow stays one";
    EXPECT_EQ(code_of(std::nan("")), 0x7f);
    EXPECT_EQ(code_of(0x1p-149), 0);
  }
}

struct Sums {
  int64_t rows, terms;
  bool transposed;
};
constexpr Sums kSums[] = {{1, 16, false}, {5, 33, false},  {70, 100, false}, {130, 512, false}, {1, 16, true},
                          {33, 5, true},  {100, 70, true}, {64, 1030, true}, {136, 260, true}};

// Result of an op for x by rows of sums, with this history.
struct InFp8 {
  InFp8(const Sums& c, DType type, const Guarded& x, std::optional<Values> history = {}, float unit = 1,
        double seen_before = -kInf)
      : codes(type, {c.rows, round_up(c.terms, kFp8Terms)}),
        scales(DType::fp32, {history ? 1 : c.rows}),
        seen(DType::fp32, {1}, {seen_before}) {
    const Guarded past(DType::fp32, {history ? int64_t(history->size()) : 1}, history.value_or(Values{0}));
    TestStream stream;
    launch(ToFp8{.codes = codes,
                 .scales = scales,
                 .seen = seen,
                 .x = x,
                 .history = history ? past.tensor() : Tensor(),
                 .unit = unit,
                 .transposed = c.transposed},
           stream);
  }
  int code(size_t i) const { return int(uint8_t(codes.bits()[i])); }
  Guarded codes, scales, seen;
};

Guarded operand(const Sums& c, DType type, const Values& values) {
  return c.transposed ? Guarded(type, {c.terms, c.rows}, values) : Guarded(type, {c.rows, c.terms}, values);
}

double element(const Sums& c, const Guarded& x, int64_t row, int64_t term) {
  return x.at(size_t(c.transposed ? term * c.rows + row : row * c.terms + term));
}

// Largest power of two at or below the magnitude, divided by half the format's largest power of two.
double scale_for(const Paper& f, double largest) {
  const int top = f.type == DType::fp8_e4m3 ? 8 : 15;
  return largest == 0 ? 0x1p-100 : std::exp2(std::floor(std::log2(largest)) - (top - 1));
}

TEST_P(ToFp8Kernel, ScalesEveryRowByItsLargestAndRoundsOnce) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16})
    for (const Paper& f : kPapers)
      for (const Sums& c : kSums) {
        SCOPED_TRACE(fmt::format("{} {} {} x {}", name_of(type), name_of(f.type), c.rows, c.terms));
        const Guarded x = operand(c, type, random_values(c.rows * c.terms, 3, 5));
        const InFp8 got(c, f.type, x);
        const std::vector<std::byte> codes = got.codes.bits();
        double most = 0;
        for (int64_t r = 0; r < c.rows; ++r) {
          double largest = 0;
          for (int64_t t = 0; t < c.terms; ++t) largest = std::max(largest, std::fabs(element(c, x, r, t)));
          most = std::max(most, largest);
          const double scale = scale_for(f, largest);
          ASSERT_EQ(got.scales.at(size_t(r)), scale) << "row " << r;
          for (int64_t t = 0; t < got.codes.tensor().dim(1); ++t) {
            const int want = t < c.terms ? nearest(f, element(c, x, r, t) / scale) : 0;
            ASSERT_EQ(int(codes[size_t(r * got.codes.tensor().dim(1) + t)]), want) << r << ", " << t;
          }
        }
        EXPECT_EQ(got.seen.at(0), most);
        EXPECT_TRUE(got.codes.intact() && got.scales.intact() && got.seen.intact());
      }
}

TEST_P(ToFp8Kernel, TakesItsScaleFromTheMaximumOfTheHistory) {
  for (const Paper& f : kPapers)
    for (const Sums& c : kSums) {
      const Guarded x = operand(c, DType::bf16, random_values(c.rows * c.terms, 4, 3));
      const float unit = 0x1p-3;
      const InFp8 got(c, f.type, x, Values{2, 5, 0, 1}, unit, 7);
      const double scale = scale_for(f, 5 * unit);
      EXPECT_EQ(got.scales.at(0), scale);
      const std::vector<std::byte> codes = got.codes.bits();
      double most = 0;
      for (int64_t r = 0; r < c.rows; ++r)
        for (int64_t t = 0; t < c.terms; ++t) {
          most = std::max(most, std::fabs(element(c, x, r, t)));
          ASSERT_EQ(int(codes[size_t(r * got.codes.tensor().dim(1) + t)]),
                    nearest(f, element(c, x, r, t) / scale));
        }
      EXPECT_EQ(got.seen.at(0), std::max(7.0, most / unit)) << "in units, and the larger of both";
    }
}

TEST_P(ToFp8Kernel, KeepsNonFiniteValuesOutOfTheScale) {
  for (const double broken : {kInf, -kInf, std::nan("")})
    for (const bool transposed : {false, true}) {
      Values v(48, 1);
      v[17] = broken;
      const Sums c{3, 16, transposed};
      const Guarded x = operand(c, DType::fp32, v);
      const InFp8 got(c, DType::fp8_e4m3, x, Values{1});
      int not_numbers = 0;
      for (size_t i = 0; i < 48; ++i) not_numbers += got.code(i) == 0x7f;
      EXPECT_EQ(not_numbers, 1);
      if (std::isnan(broken)) {
        EXPECT_EQ(got.seen.at(0), 1) << "a NaN counts as missing";
      }
    }
}

// Decoded values as doubles, row by row.
Values decoded(const Guarded& codes, const Guarded& scales) {
  Values v = codes.values();
  const auto terms = size_t(codes.tensor().dim(1));
  for (size_t i = 0; i < v.size(); ++i) v[i] *= scales.at(scales.numel() == 1 ? 0 : i / terms);
  return v;
}

enum class Added { nothing, bias, before };

TEST_P(Fp8MatmulKernel, EqualsDoublePrecisionOfWhatTheCodesStandFor) {
  struct Shape3 {
    int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Shape3{1, 16, 16}, Shape3{33, 48, 64}, Shape3{96, 32, 160}})
    for (const auto& [ta, tb] : {std::pair{kFp8[0], kFp8[0]}, {kFp8[1], kFp8[0]}, {kFp8[0], kFp8[1]}})
      for (const bool of_rows : {false, true})
        for (const DType tc : {DType::bf16, DType::fp32})
          for (const Added added : {Added::nothing, Added::bias, Added::before}) {
            const auto scales = [&](int64_t rows, int seed) {
              Values v(size_t(of_rows ? rows : 1));
              for (size_t i = 0; i < v.size(); ++i) v[i] = std::exp2(double((i * 5 + size_t(seed)) % 7) - 3);
              return Guarded(DType::fp32, {int64_t(v.size())}, v);
            };
            const Guarded a(ta, {m, k}, random_values(m * k, 1)), b(tb, {n, k}, random_values(n * k, 2)),
                sa = scales(m, 1), sb = scales(n, 4), bias(tc, {n}, random_values(n, 3));
            Guarded c(tc, {m, n}, random_values(m * n, 5));
            const Values before = c.values(), left = decoded(a, sa), right = decoded(b, sb);
            TestStream stream;
            launch(Fp8Matmul{.c = c,
                             .a = a,
                             .b = b,
                             .a_scales = sa,
                             .b_scales = sb,
                             .bias = added == Added::bias ? bias.tensor() : Tensor(),
                             .accumulate = added == Added::before},
                   stream);
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j) {
                double want = added == Added::before ? before[size_t(i * n + j)]
                              : added == Added::bias ? bias.at(size_t(j))
                                                     : 0,
                       size = std::fabs(want);
                const double first = want;
                for (int64_t t = 0; t < k; ++t) {
                  const double term = left[size_t(i * k + t)] * right[size_t(j * k + t)];
                  want += term, size += std::fabs(term);
                }
                ASSERT_NEAR(
                    c.at(size_t(i * n + j)), want,
                    half_ulp(tc) * (std::fabs(want) + std::fabs(added == Added::nothing ? 0 : want - first)) +
                        double(k + 2) * 0x1p-24 * size)
                    << m << " x " << n << " x " << k << " at " << i << ", " << j
                    << (added == Added::bias ? " with a bias" : "")
                    << (added == Added::before ? " added" : "");
              }
            EXPECT_TRUE(c.intact());
          }
}

TEST_P(PushFp8HistoryKernel, ShiftsOnlyRowsWithANewMaximum) {
  Guarded history(DType::fp32, {3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
      seen(DType::fp32, {3, 4}, {20, -kInf, -kInf, -kInf, -kInf, 99, 99, 99, 0, -kInf, -kInf, -kInf});
  TestStream stream;
  launch(PushFp8History{.history = history, .seen = seen}, stream);
  EXPECT_EQ(history.values(), (Values{20, 1, 2, 3, 5, 6, 7, 8, 0, 9, 10, 11}));
  Guarded one(DType::fp32, {1, 1}, {3}), now(DType::fp32, {1, 1}, {4});
  launch(PushFp8History{.history = one, .seen = now}, stream);
  EXPECT_EQ(one.at(0), 4);
}

TEST(Fp8, RejectsOperandsThatDoNotFit) {
  Stream stream;
  Guarded x(DType::bf16, {4, 20}), codes(DType::fp8_e4m3, {4, 32}), short_ones(DType::fp8_e4m3, {4, 20}),
      one(DType::fp32, {1}), four(DType::fp32, {4}), c(DType::bf16, {4, 4}), other(DType::fp8_e5m2, {4, 32});
  EXPECT_THROW(launch(ToFp8{.codes = short_ones, .scales = four, .x = x}, stream), Error);
  EXPECT_THROW(launch(ToFp8{.codes = codes, .scales = one, .x = x}, stream), Error) << "a scale for each row";
  EXPECT_THROW(launch(ToFp8{.codes = codes, .scales = four, .x = x, .history = one}, stream), Error);
  EXPECT_THROW(launch(ToFp8{.codes = codes, .scales = four, .x = x, .transposed = true}, stream), Error);
  EXPECT_THROW(launch(Fp8Matmul{.c = c, .a = other, .b = other, .a_scales = one, .b_scales = one}, stream),
               Error);
  EXPECT_THROW(launch(Fp8Matmul{.c = c, .a = codes, .b = other, .a_scales = one, .b_scales = four}, stream),
               Error);
  EXPECT_THROW(launch(Fp8Matmul{.c = c, .a = codes, .b = x, .a_scales = one, .b_scales = one}, stream),
               Error);
}

}  // namespace
}  // namespace cleave::kernels
