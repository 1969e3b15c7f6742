#include "kernels/loss.h"

#include "tests/kernels/guarded.h"

namespace cleave {
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
        for (float scale : {0.0f, 0.25f}) {
          Values raw = random_values(int64_t{rows} * columns, 1, 3);
          for (double& x : raw) x += offset;
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
              want[size_t(r * columns + i)] = ignored || i >= vocab ? 0 : scale * (p - (i == target));
            }
          }
          TestStream stream;
          launch(CrossEntropy{.logits = logits,
                              .losses = losses,
                              .dlogits = in_place ? Tensor() : dlogits,
                              .targets = targets,
                              .vocab = vocab,
                              .scale = scale},
                 stream);
          expect_near(losses, want_loss, 1e-6, 3e-6, "losses");
          expect_near(in_place || scale == 0 ? logits : dlogits, want, half_ulp(gradient_type) * 1.01 + 1e-6,
                      gradient_type == DType::fp16 ? 6e-8 : 1e-8, "gradient");
        }
}

TEST_P(CrossEntropyKernel, NamesATargetOutsideTheVocabulary) {
  for (double bad : {-1.0, 6.0, -101.0}) {
    Guarded logits(DType::fp32, {2, 8}, random_values(16, 1)), losses(DType::fp32, {2}),
        targets(DType::int32, {2}, {5, bad});
    TestStream stream;
    try {
      launch(CrossEntropy{.logits = logits, .losses = losses, .targets = targets, .vocab = 6, .scale = 1},
             stream);
      FAIL() << "target " << bad << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::data);
    }
  }
}

}  // namespace
}  // namespace cleave
