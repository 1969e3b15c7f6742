#include "kernels/rotary.h"

#include <complex>

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Rotary);

struct Sizes {
  int64_t rows, seq, heads, kv_heads, head_dim, first_position;
};
constexpr Sizes kRotations[] = {{1, 1, 1, 1, 2, 0},    {6, 3, 4, 2, 6, 0},    {10, 5, 3, 1, 32, 7},
                                {70, 35, 2, 2, 34, 0}, {40, 40, 5, 5, 64, 0}, {0, 4, 2, 1, 8, 0}};

double angle_of(int64_t position, int64_t i, int64_t head_dim) {
  return double(position) * std::pow(10000.0, -2.0 * double(i) / double(head_dim));
}

struct Angles {
  Angles(int64_t positions, int64_t head_dim)
      : cos(DType::fp32, {positions, head_dim / 2}), sin(DType::fp32, {positions, head_dim / 2}) {
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t i = 0; i < head_dim / 2; ++i) {
        cos.put(size_t(p * head_dim / 2 + i), std::cos(angle_of(p, i, head_dim)));
        sin.put(size_t(p * head_dim / 2 + i), std::sin(angle_of(p, i, head_dim)));
      }
  }
  Guarded cos, sin;
};

// Elements i and i + head_dim / 2 as a complex number, times e^(i angle).
Values turned(Values x, const Sizes& s, double direction) {
  const int64_t stride = (s.heads + 2 * s.kv_heads) * s.head_dim, half = s.head_dim / 2;
  for (int64_t row = 0; row < s.rows; ++row)
    for (int64_t h = 0; h < s.heads + s.kv_heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        double& real = x[size_t(row * stride + h * s.head_dim + i)];
        double& imaginary = x[size_t(row * stride + h * s.head_dim + half + i)];
        const double angle = direction * angle_of(s.first_position + row % s.seq, i, s.head_dim);
        const auto z = std::complex(real, imaginary) * std::polar(1.0, angle);
        real = z.real(), imaginary = z.imag();
      }
  return x;
}

Rotary op_of(const Sizes& s, const Guarded& qkv, const Angles& table, bool inverse) {
  return {.qkv = qkv,
          .cos = table.cos,
          .sin = table.sin,
          .seq = s.seq,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .first_position = s.first_position,
          .inverse = inverse};
}

TEST_P(RotaryKernel, RotatesQueriesAndKeysAsComplexNumbersAndKeepsValues) {
  for (DType type : kTrainingTypes)
    for (const Sizes& s : kRotations)
      for (bool inverse : {false, true}) {
        const int64_t stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
        Guarded qkv(type, {s.rows, stride}, random_values(s.rows * stride, 1));
        const Angles table(s.first_position + s.seq, s.head_dim);
        const Values before = qkv.values();
        TestStream stream;
        launch(op_of(s, qkv, table, inverse), stream);
        // A component may cancel, so the bound is relative to the size of the point.
        expect_near(qkv, turned(before, s, inverse ? -1 : 1), half_ulp(type) * 1.01, 1e-6, "qkv");
        for (int64_t row = 0; row < s.rows; ++row)
          for (int64_t i = (s.heads + s.kv_heads) * s.head_dim; i < stride; ++i)
            ASSERT_EQ(qkv.at(size_t(row * stride + i)), before[size_t(row * stride + i)]);
      }
}

TEST_P(RotaryKernel, InverseRotatesBack) {
  const Sizes s{12, 6, 4, 2, 20, 3};
  const int64_t stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
  Guarded qkv(DType::fp32, {s.rows, stride}, random_values(s.rows * stride, 1));
  const Values before = qkv.values();
  const Angles table(s.first_position + s.seq, s.head_dim);
  TestStream stream;
  launch(op_of(s, qkv, table, false), stream);
  EXPECT_NE(qkv.values(), before);
  launch(op_of(s, qkv, table, true), stream);
  expect_near(qkv, before, 0, 1e-6, "qkv");
}

// Documents of 1, 3 and 2 rows in the first sequence and of 6 in the second; positions restart in each.
TEST_P(RotaryKernel, DocumentsBeginAtPositionZero) {
  const std::vector<double> begins{0, 1, 1, 1, 4, 4, 0, 0, 0, 0, 0, 0},
      positions{0, 0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 5};
  const Sizes s{12, 6, 4, 2, 20, 0};
  const int64_t stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
  for (DType type : kTrainingTypes) {
    Guarded qkv(type, {s.rows, stride}, random_values(s.rows * stride, 1));
    const Guarded documents(DType::int32, {2, 6}, begins);
    const Angles table(s.seq, s.head_dim);
    Values want;
    for (int64_t row = 0; row < s.rows; ++row) {
      const Values all = qkv.values();
      const Values one(all.begin() + row * stride, all.begin() + (row + 1) * stride);
      const Values there = turned(one, {1, 1, 4, 2, 20, int64_t(positions[size_t(row)])}, 1);
      want.insert(want.end(), there.begin(), there.end());
    }
    Rotary op = op_of(s, qkv, table, false);
    op.documents = documents;
    TestStream stream;
    launch(op, stream);
    expect_near(qkv, want, half_ulp(type) * 1.01, 1e-6, "qkv");
  }
}

// Rows at arbitrary positions.
TEST_P(RotaryKernel, PositionsSelectTheRotation) {
  const std::vector<double> positions{5, 0, 6, 6, 3};
  const Sizes s{5, 5, 4, 2, 20, 0};
  const int64_t stride = (s.heads + 2 * s.kv_heads) * s.head_dim;
  for (DType type : kTrainingTypes) {
    Guarded qkv(type, {s.rows, stride}, random_values(s.rows * stride, 1));
    const Guarded at(DType::int32, {s.rows}, positions);
    const Angles table(7, s.head_dim);
    const Values all = qkv.values();
    Values want;
    for (int64_t row = 0; row < s.rows; ++row) {
      const Values one(all.begin() + row * stride, all.begin() + (row + 1) * stride);
      const Values there = turned(one, {1, 1, 4, 2, 20, int64_t(positions[size_t(row)])}, 1);
      want.insert(want.end(), there.begin(), there.end());
    }
    Rotary op = op_of(s, qkv, table, false);
    op.positions = at;
    TestStream stream;
    launch(op, stream);
    expect_near(qkv, want, half_ulp(type) * 1.01, 1e-6, "qkv");
  }
}

}  // namespace
}  // namespace cleave::kernels
