#include "kernels/norm.h"

#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(RmsNorm);

KERNEL_SUITE(LayerNorm);

struct Row {
  double mean, rstd;
};
Row statistics(const Values& s, int64_t row, int64_t width, double eps) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < width; ++i) mean += s[size_t(row * width + i)] / double(width);
  for (int64_t i = 0; i < width; ++i)
    variance += std::pow(s[size_t(row * width + i)] - mean, 2) / double(width);
  return {mean, 1 / std::sqrt(variance + eps)};
}

Values normalize(const Values& s, const Values& weight, const Values& bias, int64_t rows, int64_t width) {
  Values y(s.size());
  for (int64_t r = 0; r < rows; ++r) {
    const Row stat = statistics(s, r, width, 1e-5);
    for (int64_t i = 0; i < width; ++i) {
      const size_t j = size_t(r * width + i);
      y[j] = (s[j] - stat.mean) * stat.rstd * weight[size_t(i)] + bias[size_t(i)];
    }
  }
  return y;
}

// The last ones exceed the shared memory of a block, on GPUs with 99 KiB or on all.
const std::pair<int64_t, int64_t> kSizes[] = {{1, 16},  {3, 17},    {5, 1},     {70, 33},  {129, 96},
                                              {4, 768}, {0, 8},     {9, 256},   {11, 376}, {17, 1024},
                                              {3, 512}, {1, 25400}, {2, 60001}, {1, 60008}};

TEST_P(LayerNormKernel, ForwardEqualsDoublePrecision) {
  for (DType type : kTrainingTypes)
    for (auto [rows, width] : kSizes)
      for (bool residual : {false, true}) {
        Guarded x(type, {rows, width}, random_values(rows * width, 1)),
            r(type, {rows, width}, random_values(rows * width, 2));
        Guarded weight(type, {width}, random_values(width, 3)), bias(type, {width}, random_values(width, 4));
        Guarded y(type, {rows, width}), sum(type, {rows, width}), mean(DType::fp32, {rows}),
            rstd(DType::fp32, {rows});
        Values s = x.values();
        for (size_t i = 0; residual && i < s.size(); ++i) s[i] = rounded(s[i] + r.at(i), type);
        TestStream stream;
        launch(LayerNormForward{.y = y,
                                .sum = residual ? sum.tensor() : Tensor(),
                                .mean = mean,
                                .rstd = rstd,
                                .x = x,
                                .residual = residual ? r.tensor() : Tensor(),
                                .weight = weight,
                                .bias = bias},
               stream);
        expect_near(y, normalize(s, weight.values(), bias.values(), rows, width), half_ulp(type) * 1.01, 3e-6,
                    "y");
        if (residual) expect_near(sum, s, half_ulp(type), 0, "sum");
      }
}

TEST_P(LayerNormKernel, BackwardEqualsFiniteDifferences) {
  for (auto [rows, width] : {std::pair<int64_t, int64_t>{3, 5}, {2, 17}, {70, 4}}) {
    Guarded x(DType::fp32, {rows, width}, random_values(rows * width, 1)),
        dy(DType::fp32, {rows, width}, random_values(rows * width, 2));
    Guarded weight(DType::fp32, {width}, random_values(width, 3)),
        res(DType::fp32, {rows, width}, random_values(rows * width, 5));
    Guarded mean(DType::fp32, {rows}), rstd(DType::fp32, {rows}), dx(DType::fp32, {rows, width});
    Guarded dweight(DType::fp32, {width}, random_values(width, 6)),
        dbias(DType::fp32, {width}, random_values(width, 7));
    const Values zeros(size_t(width), 0.0);
    auto loss = [&](const Values& xs, const Values& ws, const Values& bs) {
      const Values y = normalize(xs, ws, bs, rows, width);
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy.at(i);
      return sum;
    };
    Values want_dx, want_dw = dweight.values(), want_db(size_t(width), 0.0);
    for (size_t i = 0; i < size_t(rows * width); ++i) {
      const double h = 1e-5;
      Values up = x.values(), down = up;
      up[i] += h, down[i] -= h;
      want_dx.push_back(res.at(i) +
                        (loss(up, weight.values(), zeros) - loss(down, weight.values(), zeros)) / (2 * h));
      want_db[i % size_t(width)] += dy.at(i);
    }
    for (size_t i = 0; i < size_t(width); ++i) {
      Values up = weight.values(), down = up;
      up[i] += 1e-5, down[i] -= 1e-5;
      want_dw[i] += (loss(x.values(), up, zeros) - loss(x.values(), down, zeros)) / 2e-5;
    }
    for (int64_t r = 0; r < rows; ++r) {
      const Row s = statistics(x.values(), r, width, 1e-5);
      mean.put(size_t(r), s.mean), rstd.put(size_t(r), s.rstd);
    }
    TestStream stream;
    launch(LayerNormBackward{.dx = dx,
                             .dweight = dweight,
                             .dbias = dbias,
                             .dy = dy,
                             .x = x,
                             .mean = mean,
                             .rstd = rstd,
                             .weight = weight,
                             .dresidual = res,
                             .accumulate_weight = true},
           stream);
    expect_near(dx, want_dx, 1e-5, 1e-5, "dx");
    expect_near(dweight, want_dw, 1e-5, 2e-5, "dweight");
    expect_near(dbias, want_db, 1e-5, 1e-5, "dbias");
  }
}

// Rows of one warp and of several, of every number of packs per lane, rows that exceed the registers of a
// block, and rows with sums that exceed its shared memory; enough rows for several blocks.
const std::pair<int64_t, int64_t> kBackwardSizes[] = {
    {1, 16},    {3, 17},   {70, 33},  {129, 96}, {0, 8},    {37, 264},  {70, 768},  {33, 1024}, {9, 1600},
    {18, 2048}, {9, 3072}, {5, 3584}, {6, 4096}, {3, 5000}, {2, 12704}, {1, 60008}, {2, 60001}};

TEST_P(LayerNormKernel, BackwardEqualsDoublePrecision) {
  for (DType type : kTrainingTypes)
    for (auto [rows, width] : kBackwardSizes) {
      Guarded x(type, {rows, width}, random_values(rows * width, 1)),
          dy(type, {rows, width}, random_values(rows * width, 2)), dx(type, {rows, width});
      Guarded weight(type, {width}, random_values(width, 3)),
          res(type, {rows, width}, random_values(rows * width, 5));
      Guarded mean(DType::fp32, {rows}), rstd(DType::fp32, {rows});
      Guarded dweight(DType::fp32, {width}, random_values(width, 6)), dbias(DType::fp32, {width});
      Values want_dx = res.values(), want_dw = dweight.values(), want_db(size_t(width), 0.0);
      for (int64_t r = 0; r < rows; ++r) {
        const Row s = statistics(x.values(), r, width, 1e-5);
        mean.put(size_t(r), s.mean), rstd.put(size_t(r), s.rstd);
        const size_t begin = size_t(r * width);
        double g = 0, gx = 0;
        for (size_t i = 0; i < size_t(width); ++i) {
          const double d = dy.at(begin + i), hat = (x.at(begin + i) - s.mean) * s.rstd;
          g += d * weight.at(i) / double(width), gx += d * weight.at(i) * hat / double(width);
          want_dw[i] += d * hat, want_db[i] += d;
        }
        for (size_t i = 0; i < size_t(width); ++i)
          want_dx[begin + i] +=
              s.rstd * (dy.at(begin + i) * weight.at(i) - g - (x.at(begin + i) - s.mean) * s.rstd * gx);
      }
      TestStream stream;
      const LayerNormBackward op{.dx = dx,
                                 .dweight = dweight,
                                 .dbias = dbias,
                                 .dy = dy,
                                 .x = x,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .weight = weight,
                                 .dresidual = res,
                                 .accumulate_weight = true};
      launch(op, stream);
      expect_near(dx, want_dx, half_ulp(type) * 1.01, 1e-5, "dx");
      expect_near(dweight, want_dw, 1e-6, 2e-5, "dweight");
      expect_near(dbias, want_db, 1e-6, 2e-5, "dbias");
      LayerNormBackward again = op;  // the next row is read before this one is written
      again.dx = dy, again.accumulate_weight = false;
      launch(again, stream);
      EXPECT_EQ(dy.values(), dx.values()) << "in place, " << rows << " x " << width;
    }
}

double rms_rstd(const Values& s, int64_t row, int64_t width) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i) squares += std::pow(s[size_t(row * width + i)], 2);
  return 1 / std::sqrt(squares / double(width) + 1e-6);
}

Values rms_normalize(const Values& s, const Values& weight, int64_t rows, int64_t width, double offset) {
  Values y(s.size());
  for (int64_t r = 0; r < rows; ++r) {
    const double rstd = rms_rstd(s, r, width);
    for (auto j = size_t(r * width); j < size_t((r + 1) * width); ++j)
      y[j] = s[j] * rstd * (offset + weight[j % size_t(width)]);
  }
  return y;
}

TEST_P(RmsNormKernel, ForwardEqualsDoublePrecision) {
  for (DType type : kTrainingTypes)
    for (auto [rows, width] : kSizes)
      for (bool residual : {false, true}) {
        Guarded x(type, {rows, width}, random_values(rows * width, 1)),
            r(type, {rows, width}, random_values(rows * width, 2));
        Guarded weight(type, {width}, random_values(width, 3));
        Guarded y(type, {rows, width}), sum(type, {rows, width}), rstd(DType::fp32, {rows});
        Values s = x.values(), want_rstd;
        for (size_t i = 0; residual && i < s.size(); ++i) s[i] = rounded(s[i] + r.at(i), type);
        for (int64_t row = 0; row < rows; ++row) want_rstd.push_back(rms_rstd(s, row, width));
        TestStream stream;
        launch(RmsNormForward{.y = y,
                              .sum = residual ? sum.tensor() : Tensor(),
                              .rstd = rstd,
                              .x = x,
                              .residual = residual ? r.tensor() : Tensor(),
                              .weight = weight,
                              .offset = residual ? 1.0f : 0.0f},
               stream);
        // In long rows the sum of squares loses one rounding per addition of a lane, and its root half of
        // that.
        const double error = width <= 1024 ? 3e-7 : double(width) / 32 * 0x1p-24;
        expect_near(y, rms_normalize(s, weight.values(), rows, width, residual),
                    half_ulp(type) * 1.01 + error, 1e-7, "y");
        expect_near(rstd, want_rstd, error, 0, "rstd");
        if (residual) expect_near(sum, s, half_ulp(type), 0, "sum");
      }
}

// Closed form in double precision, for every type; gradient_test.cpp has the finite differences. Half of the
// sizes have weights that are added to 1.
TEST_P(RmsNormKernel, BackwardEqualsDoublePrecision) {
  for (DType type : kTrainingTypes)
    for (auto [rows, width] : kBackwardSizes) {
      const float offset = rows % 2 == 0 ? 1 : 0;
      Guarded x(type, {rows, width}, random_values(rows * width, 1)),
          dy(type, {rows, width}, random_values(rows * width, 2));
      Guarded weight(type, {width}, random_values(width, 3)),
          res(type, {rows, width}, random_values(rows * width, 5));
      Guarded rstd(DType::fp32, {rows}), dx(type, {rows, width});
      Guarded dweight(DType::fp32, {width}, random_values(width, 6));
      Values want_dx = res.values(), want_dw = dweight.values();
      for (int64_t r = 0; r < rows; ++r) {
        const double scale = rms_rstd(x.values(), r, width);
        rstd.put(size_t(r), scale);
        double mean = 0;
        for (int64_t i = 0; i < width; ++i) {
          const size_t j = size_t(r * width + i);
          mean += dy.at(j) * (offset + weight.at(size_t(i))) * x.at(j) * scale / double(width);
          want_dw[size_t(i)] += dy.at(j) * x.at(j) * scale;
        }
        for (int64_t i = 0; i < width; ++i) {
          const size_t j = size_t(r * width + i);
          want_dx[j] += scale * (dy.at(j) * (offset + weight.at(size_t(i))) - x.at(j) * scale * mean);
        }
      }
      TestStream stream;
      launch(RmsNormBackward{.dx = dx,
                             .dweight = dweight,
                             .dy = dy,
                             .x = x,
                             .rstd = rstd,
                             .weight = weight,
                             .dresidual = res,
                             .offset = offset,
                             .accumulate = true},
             stream);
      expect_near(dx, want_dx, half_ulp(type) * 1.01, 5e-6, "dx");
      expect_near(dweight, want_dw, 1e-6, 2e-5, "dweight");
    }
}

}  // namespace
}  // namespace cleave::kernels
