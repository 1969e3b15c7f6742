// Trials of library kernels on a GPU. Compiled in builds with a GPU backend.
#include "kernels/cuda/trial.h"

#include <stdlib.h>

#include "core/build.h"
#include "kernels/attention.h"
#include "kernels/choices.h"
#include "kernels/cuda/attention_sample.h"
#include "kernels/cuda/gated_routes.h"
#include "kernels/cuda/measure.h"
#include "kernels/dense.h"
#include "kernels/elementwise.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

class TrialKernel : public OnDevice {};
INSTANTIATE_TEST_SUITE_P(On, TrialKernel, testing::Values(Device::cuda(0)),
                         [](const auto&) { return std::string("cuda"); });

TEST_P(TrialKernel, DetectsADifferentElementAndANan) {
  TestStream stream;
  for (DType type : kTrainingTypes)
    for (double wrong : {1.5, std::nan("")}) {
      const Values values = random_values(1000, 1);
      Guarded want(type, {1000}, values), got(type, {1000}, values);
      EXPECT_EQ(gpu::difference("x", got, want, 1e-3, stream.get()), "");
      got.put(617, values[617] + wrong);
      const gpu::Verdict verdict = gpu::difference("x", got, want, 0.1, stream.get());
      EXPECT_NE(verdict.find("x[617]"), std::string::npos) << verdict;
    }
}

TEST_P(TrialKernel, RunsOnceAndReportsAFailureInOneLine) {
  TestStream stream;
  int trials = 0;
  auto fails = [&] { return ++trials, gpu::Verdict("it gives 1, not 2"); };
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(gpu::proved("a guess", "CLEAVE_TEST_SWITCH", stream.get(), fails));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(trials, 1);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("a guess is not used: it gives 1, not 2; CLEAVE_TEST_SWITCH=off"), std::string::npos)
      << text;
  EXPECT_TRUE(gpu::proved("a fact", "CLEAVE_TEST_SWITCH", stream.get(), [] { return gpu::Verdict(); }));
}

TEST_P(TrialKernel, IsSkippedIfTheLibraryIsOff) {
  TestStream stream;
  setenv("CLEAVE_TEST_SWITCH", "off", 1);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(gpu::proved("nothing", "CLEAVE_TEST_SWITCH", stream.get(), []() -> gpu::Verdict {
    ADD_FAILURE() << "a trial";
    return {};
  }));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  unsetenv("CLEAVE_TEST_SWITCH");
}

// Without this, the other tests would pass on the separate kernels. A GPU or library without one of these
// kernels fails here but trains correctly.
TEST_P(TrialKernel, UsesTheLibraryForGeluItsGradientAndTheBiasGradient) {
  const DType t = DType::bf16;
  Guarded x(t, {64, 32}, random_values(64 * 32, 1)), w(t, {48, 32}, random_values(48 * 32, 2)), bias(t, {48});
  Guarded y(t, {64, 48}), hidden(t, {64, 48}), dx(t, {64, 32}), inner(t, {64, 32}), db(DType::fp32, {48});
  TestStream stream;
  testing::internal::CaptureStderr();
  launch(DenseActivation{.y = y, .hidden = hidden, .x = x, .weight = w, .bias = bias}, stream);
  launch(DenseActivationGradient{.dhidden = dx, .dy = y, .weight = w, .hidden = inner}, stream);
  for (DType of : {DType::bf16, DType::fp32})
    for (bool add : {false, true}) {
      Guarded dw(of, {48, 32}), dbias(of, {48});
      launch(DenseWeightGradient{.dweight = dw,
                                 .dbias = dbias,
                                 .dy = y,
                                 .x = x,
                                 .accumulate_weight = add,
                                 .accumulate_bias = add},
             stream);
    }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Both implementations of both directions agree, and the choice was measured.
TEST_P(TrialKernel, UsesCudnnForSwigluFusedWithProducts) {
  const DType t = DType::bf16;
  const int64_t m = 256, n = 128, k = 192;
  TestStream stream;
  stream.get().measure_choices();
  if (!gpu::library_gates(stream.get())) GTEST_SKIP() << "cuDNN is not there";
  Guarded x(t, {m, k}, random_values(m * k, 1)), w(t, {2 * n, k}, random_values(2 * n * k, 2, 0.1)),
      down(t, {k, n}, random_values(k * n, 3, 0.1));
  Guarded y(t, {m, n}), hidden(t, {m, 2 * n}), room(t, {m, n}), dhidden(t, {m, 2 * n});
  const DenseGated forward{.y = y, .hidden = hidden, .x = x, .weight = w, .bias = {}};
  const DenseGatedGradient backward{
      .dhidden = dhidden, .dactive = room, .dy = x, .weight = down, .hidden = hidden};
  launch(forward.product(), stream), launch(forward.activation(), stream);
  launch(backward.product(), stream), launch(backward.activation(), stream);
  const Values want_y = y.values(), want_dhidden = dhidden.values();
  EXPECT_TRUE(gpu::library_gated(forward, stream.get()));
  expect_near(y, want_y, 0x1p-6, 0x1p-6, "y");
  EXPECT_TRUE(gpu::library_gated(backward, stream.get()));
  expect_near(dhidden, want_dhidden, 0x1p-6, 0x1p-6, "dhidden");

  Choices::of_process().take_new();
  testing::internal::CaptureStderr();
  launch(forward, stream), launch(backward, stream);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  int measured = 0;
  for (const auto& [name, choice] : Choices::of_process().take_new()) measured += name.find("SwiGLU") == 0;
  EXPECT_EQ(measured, 2);
  expect_near(y, want_y, 0x1p-6, 0x1p-6, "y");
  expect_near(dhidden, want_dhidden, 0x1p-6, 0x1p-6, "dhidden");
}

// The next tests need a product with several algorithms. The library may offer a single one for a shape, so
// they try several new shapes.
constexpr int kShapes = 4;

// Measuring runs a product many times; the accumulated result must be that of one run.
TEST_P(TrialKernel, MeasuresAProductOnceAndPreservesItsSum) {
  Choices::Map chosen;
  for (int shape = 0; shape < kShapes && chosen.empty(); ++shape) {
    const int64_t m = 320, n = 192 + 8 * shape, k = 256;
    Guarded a(DType::bf16, {m, k}, random_values(m * k, 1)), b(DType::bf16, {k, n}, random_values(k * n, 2));
    Guarded once(DType::fp32, {m, n}, random_values(m * n, 3)), twice(DType::fp32, {m, n}, once.values());
    TestStream stream;
    stream.get().measure_choices();
    Choices::of_process().take_new();
    Values want = once.values();
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l)
          want[size_t(i * n + j)] += a.at(size_t(i * k + l)) * b.at(size_t(l * n + j));
    launch(Matmul{.c = once, .a = a, .b = b, .bias = {}, .accumulate = true}, stream);
    expect_near(once, want, 1e-5, 1e-4, "sum");
    chosen = Choices::of_process().take_new();
    const std::string named = fmt::format("product {} x {} x {}", m, n, k);
    for (const auto& [name, choice] : chosen) EXPECT_NE(name.find(named), std::string::npos) << name;
    launch(Matmul{.c = twice, .a = a, .b = b, .bias = {}, .accumulate = true}, stream);
    EXPECT_TRUE(Choices::of_process().take_new().empty());
    EXPECT_EQ(twice.values(), once.values());
  }
  EXPECT_EQ(chosen.size(), 1u);
}

// The address of an operand must not select another algorithm, which could have other bits.
TEST_P(TrialKernel, MeasuresAProductOnceForAllAddresses) {
  size_t measured = 0;
  for (int shape = 0; shape < kShapes && measured == 0; ++shape) {
    const int64_t m = 96, n = 64 + 8 * shape, k = 56, room = m * k + 256;
    Guarded a(DType::bf16, {room}, random_values(room, 1)), b(DType::bf16, {k, n}, random_values(k * n, 2)),
        c(DType::fp32, {m, n});
    const auto at = int64_t(reinterpret_cast<uintptr_t>(Tensor(a).raw()));
    const int64_t first = (round_up(at, 256) - at) / size_of(DType::bf16);
    TestStream stream;
    stream.get().measure_choices();
    Choices::of_process().take_new();
    for (const int64_t moved : {0, 32, 64, 96}) {
      const Tensor there = Tensor(a).slice(Range{0, m * k}.shifted(first + moved)).view({m, k});
      launch(Matmul{.c = c, .a = there, .b = b, .bias = {}}, stream);
      const size_t now = Choices::of_process().take_new().size();
      if (moved == 0) measured = now;
      EXPECT_EQ(now, moved == 0 ? measured : 0u) << moved << " elements further";
    }
  }
  EXPECT_EQ(measured, 1u);
}

// A sum too large for a copy, such as the gradient of a wide head.
TEST_P(TrialKernel, MeasuresTheRowsThatFitACopyAndSaysSo) {
  const int64_t m = 700, n = 64, row = n * 4;
  const struct {
    int64_t room;
    const char* says;
  } cases[] = {{512 * row + 512, " by 512 of 700 rows"}, {200 * row, "too small to measure"}, {m * row, ""}};
  int64_t k = 32;
  Choices::Map chosen;
  const auto measure = [&](int64_t room) {
    Guarded a(DType::bf16, {k, m}, random_values(m * k, 1)), b(DType::bf16, {k, n}, random_values(k * n, 2));
    Guarded sum(DType::fp32, {m, n}, random_values(m * n, 3));
    Values want = sum.values();
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t l = 0; l < k; ++l)
          want[size_t(i * n + j)] += a.at(size_t(l * m + i)) * b.at(size_t(l * n + j));
    TestStream stream;
    stream.get().measure_choices();
    Choices::of_process().take_new();
    CudaQueue& queue = cuda_queue(stream.get());
    queue.held = queue.product_scratch().bytes() - gpu::Untouched::kBehind - room;
    launch(Matmul{.c = sum, .a = a, .b = b, .bias = {}, .transpose_a = true, .accumulate = true}, stream);
    queue.held = 0;
    expect_near(sum, want, 1e-5, 1e-4, "sum");
    chosen = Choices::of_process().take_new();
  };
  for (const auto& [room, says] : cases) {
    chosen.clear();
    for (int shape = 0; shape < kShapes && chosen.empty(); ++shape, k += 8) measure(room);
    ASSERT_EQ(chosen.size(), 1u);
    const std::string& choice = chosen.begin()->second;
    EXPECT_NE(choice.find(says), std::string::npos) << choice;
    EXPECT_EQ(choice.find(" by ") != std::string::npos, room > 200 * row && room < m * row) << choice;
  }
}

TEST_P(TrialKernel, MeasuresEpiloguesAndComputesTheSameEitherWay) {
  const DType t = DType::bf16;
  Guarded dy(t, {256, 64}, random_values(256 * 64, 1)), x(t, {256, 128}, random_values(256 * 128, 2));
  Guarded measured(DType::fp32, {64, 128}, random_values(64 * 128, 3)),
      plain(DType::fp32, {64, 128}, measured.values());
  Guarded bias(DType::fp32, {64}, random_values(64, 4)), plain_bias(DType::fp32, {64}, bias.values());
  TestStream stream;
  DenseWeightGradient op{.dweight = plain,
                         .dbias = plain_bias,
                         .dy = dy,
                         .x = x,
                         .accumulate_weight = true,
                         .accumulate_bias = true};
  launch(op.product(), stream), launch(op.bias_gradient(), stream);
  stream.get().measure_choices();
  Choices::of_process().take_new();
  op.dweight = measured, op.dbias = bias;
  launch(op, stream);
  expect_near(measured, plain.values(), 1e-5, 1e-4, "weight");
  expect_near(bias, plain_bias.values(), 1e-5, 1e-4, "bias");
  bool asked = false;
  for (const auto& [name, choice] : Choices::of_process().take_new())
    asked |= name.starts_with("bias gradient 64 x 128 x 256") && (choice == "together" || choice == "apart");
  EXPECT_TRUE(asked);
}

// A result that is wrong only in the last head of the last sequence, at its last tokens, is found there, also
// if only a part of the tokens is compared.
TEST_P(TrialKernel, ComparesTheLastHeadOfTheLastSequence) {
  const int64_t batch = 2, seq = 200, heads = 4, kv = 2, dim = 64, narrow = heads * dim,
                wide = (heads + 2 * kv) * dim, rows = batch * seq;
  const DType t = DType::bf16;
  TestStream stream;
  Guarded qkv(t, {rows, wide}, random_values(rows * wide, 1)),
      dy(t, {rows, narrow}, random_values(rows * narrow, 2));
  Guarded y(t, {rows, narrow}), dqkv(t, {rows, wide}), lse(DType::fp32, {batch, heads, seq});
  AttentionForward forward{
      .y = y, .lse = lse, .qkv = qkv, .batch = batch, .seq = seq, .heads = heads, .kv_heads = kv};
  forward.head_dim = dim, forward.scale = 0.2f;
  const AttentionBackward backward{dqkv, dy, forward};
  launch(forward, stream);
  launch(backward, stream);
  const auto found = [&](const auto& op, int64_t most_tokens = gpu::kWholeSequence) {
    const std::optional<gpu::Verdict> v = gpu::sampled_difference(op, stream.get(), most_tokens);
    return v ? *v : "not finite";
  };
  for (const int64_t tokens : {seq, int64_t{70}}) {
    EXPECT_EQ(found(forward, tokens), "");
    EXPECT_EQ(found(backward, tokens), "");
  }
  // Columns of a row: queries, keys, values.
  const int64_t last = (rows - 1) * wide, head = (heads - 1) * dim, key = (heads + kv - 1) * dim,
                value = (heads + 2 * kv - 1) * dim;
  const auto wrong = [&](Guarded& x, int64_t at, const auto& op, int64_t most_tokens = gpu::kWholeSequence) {
    const Values before = x.values();
    x.put(at, before[size_t(at)] + 2);
    (void)x.tensor();  // takes it to the GPU
    const gpu::Verdict v = found(op, most_tokens);
    x.put(at, before[size_t(at)]);
    (void)x.tensor();
    return v;
  };
  const auto says = [](const gpu::Verdict& v, const char* what) { return v.find(what) == 0; };
  EXPECT_TRUE(says(wrong(y, rows * narrow - 1, forward), "the output"));
  EXPECT_TRUE(says(wrong(lse, batch * heads * seq - 1, forward), "the row sums"));
  EXPECT_TRUE(says(wrong(dqkv, last + head + 3, backward), "the queries' gradient"));
  EXPECT_TRUE(says(wrong(dqkv, last + key + 3, backward), "the keys' gradient"));
  EXPECT_TRUE(says(wrong(dqkv, last + value + 3, backward), "the values' gradient"));
  EXPECT_TRUE(says(wrong(dqkv, last + key + 3, backward, 70), "the keys' gradient"));
  EXPECT_TRUE(says(wrong(dqkv, last - (seq - 1) * wide + head, backward, 70), "the queries' gradient"));
  EXPECT_EQ(wrong(y, 0, forward, 70).find("the output"), 0u);
  EXPECT_TRUE(says(wrong(y, 3, forward), "the output")) << "in the first sequence";

  dy.put(rows * narrow - 1, INFINITY);
  (void)dy.tensor();
  EXPECT_EQ(found(backward), "not finite");
}

// The own kernels compute this shape, because cuDNN's plans do not support it. attention_test.cpp compares
// every shape with double precision; this test fails if Hopper cannot use its own matrix instructions.
TEST_P(TrialKernel, UsesWarpgroupsForAttentionOfEveryLength) {
  const int64_t seq = 200, heads = 4, kv = 2, dim = 128, narrow = heads * dim, wide = (heads + 2 * kv) * dim;
  Guarded documents(DType::int32, {1, seq}, document_starts(1, seq, 3));
  const AttentionMask causal, window{.window = 90}, packed{.documents = documents};
  for (const auto& [t, mask] : {std::pair{DType::bf16, causal},
                                {DType::fp16, causal},
                                {DType::bf16, window},
                                {DType::bf16, packed}}) {
    Guarded qkv(t, {seq, wide}, random_values(seq * wide, 1)),
        dy(t, {seq, narrow}, random_values(seq * narrow, 2));
    Guarded y(t, {seq, narrow}), dqkv(t, {seq, wide}), lse(DType::fp32, {1, heads, seq});
    TestStream stream;
    testing::internal::CaptureStderr();
    const AttentionForward forward{.y = y,
                                   .lse = lse,
                                   .qkv = qkv,
                                   .batch = 1,
                                   .seq = seq,
                                   .heads = heads,
                                   .kv_heads = kv,
                                   .head_dim = dim,
                                   .mask = mask};
    launch(forward, stream);
    launch(AttentionBackward{dqkv, dy, forward}, stream);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  }
}

// Prints one line if cuDNN is present and rejects the mask, no line otherwise; the next implementation
// computes it.
TEST_P(TrialKernel, NamesMasksThatCudnnDoesNotSupport) {
  const int64_t seq = 256, heads = 2, dim = 64, width = heads * dim;
  const DType t = DType::bf16;
  Guarded qkv(t, {seq, 3 * width}, random_values(seq * 3 * width, 1)), y(t, {seq, width});
  Guarded lse(DType::fp32, {1, heads, seq});
  TestStream stream;
  testing::internal::CaptureStderr();
  AttentionForward op{.y = y, .lse = lse, .qkv = qkv, .seq = seq, .heads = heads, .kv_heads = heads};
  op.head_dim = dim, op.mask.window = 100;
  for (int i = 0; i < 2; ++i) launch(op, stream);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_TRUE(text.empty() ||
              text.find("a window of 100 is not used: its graph knows no mask") != std::string::npos)
      << text;
}

// On Hopper with cuDNN, its workspace holds two of these sequences at a time; the own kernels also take short
// ones. The trial compares one sequence with these kernels; this test compares each sequence of the batch
// with itself alone.
TEST_P(TrialKernel, UsesCudnnForAttentionWithTheSameResultPerSequence) {
  const int64_t batch = 4, seq = build::cudnn_version.empty() ? 256 : 2048, heads = 4, kv = 2, dim = 64,
                narrow = heads * dim, wide = (heads + 2 * kv) * dim;
  const DType t = DType::bf16;
  const int64_t rows = batch * seq;
  Guarded qkv(t, {rows, wide}, random_values(rows * wide, 1)),
      dy(t, {rows, narrow}, random_values(rows * narrow, 2));
  Guarded y[2] = {{t, {rows, narrow}}, {t, {rows, narrow}}}, dqkv[2] = {{t, {rows, wide}}, {t, {rows, wide}}};
  Guarded lse[2] = {{DType::fp32, {batch, heads, seq}}, {DType::fp32, {batch, heads, seq}}};
  TestStream stream;
  testing::internal::CaptureStderr();
  auto run = [&](size_t into, Range part) {
    const Range r{part.begin * seq, part.end * seq};
    AttentionForward forward{
        .y = y[into].tensor().rows(r), .lse = lse[into].tensor().rows(part), .qkv = qkv.tensor().rows(r)};
    forward.batch = part.size(), forward.seq = seq, forward.heads = heads, forward.kv_heads = kv,
    forward.head_dim = dim;
    launch(forward, stream);
    launch(AttentionBackward{dqkv[into].tensor().rows(r), dy.tensor().rows(r), forward}, stream);
  };
  run(0, {0, batch});
  for (int64_t b = 0; b < batch; ++b) run(1, {b, b + 1});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  expect_near(y[0], y[1].values(), 0x1p-7, 0x1p-8, "y");
  expect_near(lse[0], lse[1].values(), 1e-5, 1e-5, "lse");
  expect_near(dqkv[0], dqkv[1].values(), 0x1p-7, 0x1p-8, "dqkv");
}

}  // namespace
}  // namespace cleave::kernels
