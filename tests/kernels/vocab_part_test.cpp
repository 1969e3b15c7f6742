// A vocabulary divided over ranks: the parts together give the same results as the whole.
#include <algorithm>

#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "tests/kernels/guarded.h"
#include "tests/scratch.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(VocabPart);

constexpr int64_t kVocab = 11, kColumns = 4, kParts = 3;  // the last part has 3 tokens and one padding column

TEST_P(VocabPartKernel, LossAndGradientOfThePartsEqualDoublePrecision) {
  const int64_t rows = 5;
  const DType f = DType::fp32, b = DType::bf16, h = DType::fp16;
  for (auto [type, gradient_type] : {std::pair{f, f}, {f, b}, {f, h}, {b, b}, {h, h}})
    for (auto [scale, cap] : {std::pair{0.0f, 0.0f}, {0.5f, 0.0f}, {0.5f, 12.0f}}) {
      Guarded whole(type, {rows, kVocab}, random_values(rows * kVocab, 1, 3));
      Guarded targets(DType::int32, {rows}, {0, 10, -100, 4, 7}), stats(DType::fp32, {kParts, rows, 3});
      std::vector<Guarded> logits;
      TestStream stream;
      for (int64_t p = 0; p < kParts; ++p) {
        logits.emplace_back(type, Shape{rows, kColumns}, Values(size_t(rows * kColumns), 6e4));
        const int64_t first = p * kColumns, vocab = std::min(kColumns, kVocab - first);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < vocab; ++c)
            logits.back().put(size_t(r * kColumns + c), whole.at(size_t(r * kVocab + first + c)));
        launch(SoftmaxPart{.stats = stats.tensor().rows({p, p + 1}).view({rows, 3}),
                           .logits = logits.back(),
                           .targets = targets,
                           .vocab = vocab,
                           .first = first},
               stream);
      }
      for (int64_t p = 0; p < kParts; ++p) {
        const int64_t first = p * kColumns, vocab = std::min(kColumns, kVocab - first);
        Guarded losses(DType::fp32, {rows}), dlogits(gradient_type, {rows, kColumns});
        Values want_loss, want = dlogits.values();
        for (int64_t r = 0; r < rows; ++r) {
          const bool ignored = targets.at(size_t(r)) == -100;
          double sum = 0;
          for (int64_t c = 0; c < kVocab; ++c) sum += std::exp(whole.at(size_t(r * kVocab + c)));
          const int64_t target = int64_t(targets.at(size_t(r)));
          want_loss.push_back(ignored ? 0 : std::log(sum) - whole.at(size_t(r * kVocab + target)));
          for (int64_t c = 0; c < kColumns && scale != 0; ++c) {
            const double share = c < vocab ? std::exp(whole.at(size_t(r * kVocab + first + c))) / sum : 0;
            const double t = cap > 0 && c < vocab ? whole.at(size_t(r * kVocab + first + c)) / cap : 0;
            want[size_t(r * kColumns + c)] =
                ignored || c >= vocab ? 0 : scale * (share - (first + c == target)) * (1 - t * t);
          }
        }
        launch(CrossEntropyPart{.losses = losses,
                                .dlogits = dlogits,
                                .logits = logits[size_t(p)],
                                .targets = targets,
                                .stats = stats,
                                .vocab = vocab,
                                .first = first,
                                .all_vocab = kVocab,
                                .scale = scale,
                                .cap = cap},
               stream);
        expect_near(losses, want_loss, 1e-6, 3e-6, "losses");
        expect_near(dlogits, want, half_ulp(gradient_type) * 1.01 + 1e-6, 1e-7, "gradient");
      }
    }
}

// Logits of three values only, so ties occur within one part and across parts. The oracle is std::max_element
// of the whole row, which returns the first.
TEST_P(VocabPartKernel, HitsOfThePartsAddUpToThoseOfTheWhole) {
  const int64_t rows = 400;
  Values whole(size_t(rows * kVocab));
  std::mt19937 random(3);
  for (double& x : whole) x = double(random() % 3);
  Guarded targets(DType::int32, {rows}), stats(DType::fp32, {kParts, rows, 3});
  Values want;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = whole.begin() + r * kVocab;
    const auto first = std::max_element(row, row + kVocab) - row;
    targets.put(size_t(r), r % 7 == 0 ? -100 : r % 2 ? double(first) : double(random() % kVocab));
    want.push_back(targets.at(size_t(r)) == double(first));
  }
  std::vector<Guarded> logits;
  TestStream stream;
  for (int64_t p = 0; p < kParts; ++p) {
    const int64_t first = p * kColumns, vocab = std::min(kColumns, kVocab - first);
    logits.emplace_back(DType::fp32, Shape{rows, kColumns}, Values(size_t(rows * kColumns), 5));
    for (int64_t i = 0; i < rows * vocab; ++i)
      logits.back().put(size_t(i / vocab * kColumns + i % vocab),
                        whole[size_t(i / vocab * kVocab + first + i % vocab)]);
    launch(SoftmaxPart{.stats = stats.tensor().rows({p, p + 1}).view({rows, 3}),
                       .logits = logits.back(),
                       .targets = targets,
                       .vocab = vocab,
                       .first = first},
           stream);
  }
  Values sum(size_t(rows), 0);
  for (int64_t p = 0; p < kParts; ++p) {
    Guarded losses(DType::fp32, {rows}), hits(DType::fp32, {rows});
    launch(CrossEntropyPart{.losses = losses,
                            .logits = logits[size_t(p)],
                            .targets = targets,
                            .stats = stats,
                            .vocab = std::min(kColumns, kVocab - p * kColumns),
                            .first = p * kColumns,
                            .all_vocab = kVocab,
                            .hits = hits,
                            .part = p},
           stream);
    for (size_t r = 0; r < sum.size(); ++r) sum[r] += hits.at(r);
  }
  EXPECT_EQ(sum, want);
}

TEST_P(VocabPartKernel, PropagatesANanLogitFromAnyPart) {
  Guarded bad(DType::fp32, {1, 2}, {0, NAN}), good(DType::fp32, {1, 2}, {1, 2}), losses(DType::fp32, {1});
  Guarded targets(DType::int32, {1}, {3}), stats(DType::fp32, {2, 1, 3});
  TestStream stream;
  const auto part = [&](int64_t p) { return stats.tensor().rows({p, p + 1}).view({1, 3}); };
  launch(SoftmaxPart{.stats = part(0), .logits = bad, .targets = targets, .vocab = 2}, stream);
  launch(SoftmaxPart{.stats = part(1), .logits = good, .targets = targets, .vocab = 2, .first = 2}, stream);
  launch(CrossEntropyPart{.losses = losses,
                          .logits = good,
                          .targets = targets,
                          .stats = stats,
                          .vocab = 2,
                          .first = 2,
                          .all_vocab = 4},
         stream);
  EXPECT_FALSE(std::isfinite(losses.at(0)));
}

TEST_P(VocabPartKernel, NamesATargetOutsideTheWholeVocabulary) {
  Guarded logits(DType::fp32, {1, kColumns}, random_values(kColumns, 1)), losses(DType::fp32, {1});
  Guarded targets(DType::int32, {1}, {double(kVocab)}), stats(DType::fp32, {1, 1, 3}, {0, 1, 0});
  TestStream stream;
  expect_error(Exit::data, {}, [&] {
    launch(CrossEntropyPart{.losses = losses,
                            .logits = logits,
                            .targets = targets,
                            .stats = stats,
                            .vocab = kColumns,
                            .all_vocab = kVocab},
           stream);
  });
}

// The sum of the parts' rows is the row of the whole table; the gradient of a part is its rows of the whole
// gradient.
TEST_P(VocabPartKernel, EmbeddingsOfThePartsAddUpAndTheGradientIsDivided) {
  const int64_t rows = 9, width = 21;
  Guarded wte(DType::fp32, {kVocab, width}, random_values(kVocab * width, 1));
  Guarded dy(DType::fp32, {rows, width}, random_values(rows * width, 2));
  Guarded tokens(DType::int32, {rows}, {0, 3, 4, 10, 10, 7, 8, 3, 1});
  Values sum(size_t(rows * width), 0.0), want_sum, gradient(size_t(kVocab * width), 0.0);
  for (int64_t i = 0; i < rows * width; ++i) {
    const int64_t entry = int64_t(tokens.at(size_t(i / width))) * width + i % width;
    want_sum.push_back(wte.at(size_t(entry)));
    gradient[size_t(entry)] += dy.at(size_t(i));
  }
  TestStream stream;
  for (int64_t p = 0; p < kParts; ++p) {
    const int64_t first = p * kColumns, count = std::min(kColumns, kVocab - first);
    Guarded part(DType::fp32, {count, width}), y(DType::fp32, {rows, width});
    Guarded dpart(DType::fp32, {count, width}, random_values(count * width, 3));
    Values want;
    for (int64_t i = 0; i < count * width; ++i) {
      part.put(size_t(i), wte.at(size_t(first * width + i)));
      want.push_back(gradient[size_t(first * width + i)]);
    }
    const VocabPart vocab{.first = first, .size = kVocab};
    launch(EmbeddingForward{.y = y, .tokens = tokens, .wte = part, .part = vocab}, stream);
    launch(EmbeddingBackward{.dwte = dpart, .dy = dy, .tokens = tokens, .part = vocab}, stream);
    expect_near(dpart, want, 1e-6, 1e-6, "gradient");
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += y.at(i);
  }
  EXPECT_EQ(sum, want_sum);
}

// Rows 5 to 9 of a batch with sequences of 4: their positions are 1, 2, 3, 0, 1.
TEST_P(VocabPartKernel, PositionGradientOfSomeRowsGoesToTheirPositions) {
  const int64_t width = 3;
  Guarded dy(DType::fp32, {5, width}, random_values(5 * width, 2)), dwpe(DType::fp32, {6, width});
  Guarded tokens(DType::int32, {5}, {0, 0, 0, 0, 0});
  TestStream stream;
  launch(EmbeddingBackward{.dwpe = dwpe, .dy = dy, .tokens = tokens, .seq = 4, .first_row = 5}, stream);
  Values want(size_t(6 * width), 0.0);
  for (int64_t i = 0; i < 5 * width; ++i)
    want[size_t((5 + i / width) % 4 * width + i % width)] += dy.at(size_t(i));
  expect_near(dwpe, want, 1e-6, 1e-7, "dwpe");
}

}  // namespace
}  // namespace cleave::kernels
