#include "kernels/loss.h"

#include <algorithm>

#include "tests/kernels/guarded.h"
#include "tests/scratch.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(CrossEntropy);

TEST_P(CrossEntropyKernel, LossAndGradientEqualDoublePrecision) {
  for (auto [type, gradient_type] : {std::pair{DType::fp32, DType::fp32},
                                     {DType::bf16, DType::bf16},
                                     {DType::fp16, DType::fp16},
                                     {DType::fp32, DType::bf16},
                                     {DType::fp32, DType::fp16}})
    for (auto [rows, columns, vocab] :
         {std::tuple{5, 64, 50}, {1, 1, 1}, {7, 33, 33}, {3, 5008, 5003}, {0, 4, 4}})
      for (double offset : {0.0, -300.0})
        for (auto [scale, cap] : {std::pair{0.0f, 0.0f}, {0.25f, 0.0f}, {0.25f, 4.0f}}) {
          Values raw = random_values(int64_t{rows} * columns, 1, 3);
          for (double& x : raw) x = cap > 0 ? cap * std::tanh(x / cap) : x + offset;
          const bool in_place = type == gradient_type;
          Guarded logits(type, {rows, columns}, raw), dlogits(gradient_type, {rows, columns}),
              losses(DType::fp32, {rows}), targets(DType::int32, {rows});
          Values want_loss, want = (in_place || scale == 0 ? logits : dlogits).values();
          for (int r = 0; r < rows; ++r) {
            const bool ignored = r == 2;
            const int target = (r * 13 + 5) % vocab;
            targets.put(size_t(r), ignored ? -100 : target);
            double top = -1e300, sum = 0;
            for (int i = 0; i < vocab; ++i) top = std::max(top, logits.at(size_t(r * columns + i)));
            for (int i = 0; i < vocab; ++i) sum += std::exp(logits.at(size_t(r * columns + i)) - top);
            want_loss.push_back(ignored ? 0 : std::log(sum) + top - logits.at(size_t(r * columns + target)));
            for (int i = 0; i < columns && scale != 0; ++i) {
              const double p = std::exp(logits.at(size_t(r * columns + i)) - top) / sum;
              const double t = cap > 0 ? logits.at(size_t(r * columns + i)) / cap : 0;
              want[size_t(r * columns + i)] =
                  ignored || i >= vocab ? 0 : scale * (p - (i == target)) * (1 - t * t);
            }
          }
          TestStream stream;
          launch(CrossEntropy{.logits = logits,
                              .losses = losses,
                              .dlogits = in_place ? Tensor() : dlogits,
                              .targets = targets,
                              .vocab = vocab,
                              .scale = scale,
                              .cap = cap},
                 stream);
          expect_near(losses, want_loss, 1e-6, 3e-6, "losses");
          expect_near(in_place || scale == 0 ? logits : dlogits, want, half_ulp(gradient_type) * 1.01 + 1e-6,
                      gradient_type == DType::fp16 ? 6e-8 : 1e-8, "gradient");
        }
}

// On a GPU, a thread has at most one of 16 numbers, and more than one pack of 8208.
TEST_P(CrossEntropyKernel, IgnoresLogitsOfMinusInfinity) {
  for (const int columns : {16, 8208}) {
    Values row(size_t(columns), -INFINITY);
    row[size_t(columns) - 3] = 1, row[size_t(columns) - 5] = 3;
    Guarded logits(DType::fp32, {1, columns}, row), losses(DType::fp32, {1});
    Guarded targets(DType::int32, {1}, {double(columns - 3)});
    TestStream stream;
    launch(CrossEntropy{.logits = logits, .losses = losses, .targets = targets, .vocab = columns, .scale = 1},
           stream);
    expect_near(losses, {std::log1p(std::exp(2))}, 1e-6, 0, "losses");
    const double p = 1 / (1 + std::exp(2));
    Values want(size_t(columns), 0);
    want[size_t(columns) - 3] = p - 1, want[size_t(columns) - 5] = 1 - p;
    expect_near(logits, want, 1e-6, 0, "gradient");
  }
}

TEST_P(CrossEntropyKernel, PropagatesANanLogitFromAnyColumn) {
  for (const int columns : {3, 16, 8208})
    for (const int bad : {0, 1, 9, columns - 1})
      for (const int others : {0, 8}) {  // a whole pack at once
        Values row = random_values(columns, 1);
        for (int i = bad; i <= bad + others && i < columns; ++i) row[size_t(i)] = NAN;
        Guarded logits(DType::fp32, {1, columns}, row), losses(DType::fp32, {1});
        Guarded targets(DType::int32, {1}, {2});
        TestStream stream;
        launch(CrossEntropy{.logits = logits, .losses = losses, .targets = targets, .vocab = columns},
               stream);
        EXPECT_FALSE(std::isfinite(losses.at(0)) && bad < columns) << columns << " columns, from " << bad;
      }
}

// Logits of three values only, so most rows have ties, and padding larger than all of them. The oracle is
// std::max_element, which returns the first. 8208 columns are more than one pack per GPU thread.
TEST_P(CrossEntropyKernel, HitsAreTargetsWithTheFirstLargestLogit) {
  for (const DType type : {DType::fp32, DType::bf16, DType::fp16})
    for (auto [rows, columns, vocab] : {std::tuple{300, 7, 5}, {64, 8208, 8203}})
      for (const float scale : {0.0f, 0.5f}) {
        Values raw(size_t(rows * columns), 5);
        std::mt19937 random(11);
        for (int r = 0; r < rows; ++r)
          for (int i = 0; i < vocab; ++i) {
            const bool low = vocab > 100 && random() % 4000 != 0;
            raw[size_t(r * columns + i)] = low ? -1 : double(random() % 3);
          }
        Guarded logits(type, {rows, columns}, raw), losses(DType::fp32, {rows}), hits(DType::fp32, {rows}),
            targets(DType::int32, {rows});
        Values want;
        for (int r = 0; r < rows; ++r) {
          const auto row = raw.begin() + r * columns;
          const int first = int(std::max_element(row, row + vocab) - row);
          const auto next = std::find(row + first + 1, row + vocab, row[first]);
          const int last = next < row + vocab ? int(next - row) : vocab - 1;
          targets.put(size_t(r), r % 5 == 0 ? -100 : r % 5 < 3 ? first : r % 5 == 3 ? last : 0);
          want.push_back(targets.at(size_t(r)) == first ? 1 : 0);
        }
        TestStream stream;
        launch(CrossEntropy{.logits = logits,
                            .losses = losses,
                            .targets = targets,
                            .vocab = vocab,
                            .scale = scale,
                            .hits = hits},
               stream);
        EXPECT_EQ(hits.values(), want) << columns << " columns";
      }
}

TEST_P(CrossEntropyKernel, RowsWithANanLossAreNotHits) {
  Guarded logits(DType::fp32, {3, 2}, {3, NAN, INFINITY, 0, -INFINITY, -INFINITY}), losses(DType::fp32, {3}),
      hits(DType::fp32, {3}), targets(DType::int32, {3}, {0, 0, 0});
  TestStream stream;
  launch(CrossEntropy{.logits = logits, .losses = losses, .targets = targets, .vocab = 2, .hits = hits},
         stream);
  EXPECT_EQ(hits.values(), (Values{0, 0, 0}));
}

TEST_P(CrossEntropyKernel, NamesATargetOutsideTheVocabulary) {
  for (double bad : {-1.0, 6.0, -101.0}) {
    Guarded logits(DType::fp32, {2, 8}, random_values(16, 1)), losses(DType::fp32, {2}),
        targets(DType::int32, {2}, {5, bad});
    TestStream stream;
    expect_error(Exit::data, {}, [&] {
      launch(CrossEntropy{.logits = logits, .losses = losses, .targets = targets, .vocab = 6, .scale = 1},
             stream);
    });
  }
}

}  // namespace
}  // namespace cleave::kernels
