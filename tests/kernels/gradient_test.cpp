// Compares every backward with its forward: the directional derivative by central differences. Both kernels
// run in fp32; the loss, a fixed weighting of the output, is in double.
#include <functional>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Gradient);

constexpr DType kFloat = DType::fp32;

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// loss() reads x, which is moved by h along a random direction. fp32 forward passes leave errors of about
// 1e-6 / h.
void expect_gradient(Guarded& x, const Values& gradient, const std::function<double()>& loss,
                     const char* what) {
  const Values at = x.values(), direction = random_values(x.numel(), 99);
  const double h = 4e-3;
  auto moved = [&](double by) {
    Values v = at;
    for (size_t i = 0; i < v.size(); ++i) v[i] += by * direction[i];
    x.set(v);
    return loss();
  };
  // Richardson extrapolation: the error is of fourth order in h.
  const double near = (moved(h) - moved(-h)) / (2 * h), far = (moved(2 * h) - moved(-2 * h)) / (4 * h);
  x.set(at);
  const double want = (4 * near - far) / 3, got = dot(gradient, direction);
  const double size =
      std::sqrt(dot(gradient, gradient) * dot(direction, direction) / double(direction.size()));
  EXPECT_NEAR(got, want, 2e-3 * size + 1e-4) << what;
}

Guarded some(Shape shape, uint64_t seed) {
  return Guarded(kFloat, shape, random_values(shape.numel(), seed));
}

TEST_P(GradientKernel, OfActivations) {
  for (Activation kind : {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
    Guarded x = some({300}, 1), dy = some({300}, 2), y(kFloat, {300}), dx(kFloat, {300});
    TestStream s;
    launch(ActivationBackward{.dx = dx, .dy = dy, .x = x, .kind = kind}, s);
    expect_gradient(
        x, dx.values(),
        [&] {
          launch(ActivationForward{.y = y, .x = x, .kind = kind}, s);
          return dot(y.values(), dy.values());
        },
        "gelu");
  }
}

TEST_P(GradientKernel, OfLayerNorm) {
  const int64_t rows = 67, width = 24;
  Guarded x = some({rows, width}, 1), dy = some({rows, width}, 2), y(kFloat, {rows, width}),
          dx(kFloat, {rows, width});
  Guarded w = some({width}, 3), b = some({width}, 4), dw(kFloat, {width}), db(kFloat, {width});
  Guarded mean(kFloat, {rows}), rstd(kFloat, {rows});
  TestStream s;
  auto loss = [&] {
    launch(LayerNormForward{.y = y, .mean = mean, .rstd = rstd, .x = x, .weight = w, .bias = b}, s);
    return dot(y.values(), dy.values());
  };
  loss();
  launch(
      LayerNormBackward{
          .dx = dx, .dweight = dw, .dbias = db, .dy = dy, .x = x, .mean = mean, .rstd = rstd, .weight = w},
      s);
  expect_gradient(x, dx.values(), loss, "x");
  expect_gradient(w, dw.values(), loss, "weight");
  expect_gradient(b, db.values(), loss, "bias");
}

TEST_P(GradientKernel, OfRmsNorm) {
  const int64_t rows = 67, width = 24;
  Guarded x = some({rows, width}, 1), dy = some({rows, width}, 2), y(kFloat, {rows, width}),
          dx(kFloat, {rows, width});
  Guarded w = some({width}, 3), dw(kFloat, {width}), rstd(kFloat, {rows});
  TestStream s;
  for (const float offset : {0.0f, 1.0f}) {
    auto loss = [&] {
      launch(RmsNormForward{.y = y, .rstd = rstd, .x = x, .weight = w, .offset = offset}, s);
      return dot(y.values(), dy.values());
    };
    loss();
    launch(
        RmsNormBackward{
            .dx = dx, .dweight = dw, .dy = dy, .x = x, .rstd = rstd, .weight = w, .offset = offset},
        s);
    expect_gradient(x, dx.values(), loss, "x");
    expect_gradient(w, dw.values(), loss, "weight");
  }
}

TEST_P(GradientKernel, OfGatedUnits) {
  const int64_t rows = 13, width = 37;
  Guarded x = some({rows, 2 * width}, 1), dx(kFloat, {rows, 2 * width});
  Guarded y(kFloat, {rows, width}), dy = some({rows, width}, 2);
  TestStream s;
  for (Activation kind : {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf}) {
    launch(GatedBackward{.dx = dx, .dy = dy, .x = x, .kind = kind}, s);
    expect_gradient(
        x, dx.values(),
        [&] {
          launch(GatedForward{.y = y, .x = x, .kind = kind}, s);
          return dot(y.values(), dy.values());
        },
        "x");
  }
}

TEST_P(GradientKernel, OfRotary) {
  const int64_t seq = 9, rows = 2 * seq, heads = 4, kv = 2, dim = 12, width = (heads + 2 * kv) * dim;
  Guarded x = some({rows, width}, 1), y(kFloat, {rows, width}), dy = some({rows, width}, 2);
  Guarded angles = some({seq, dim / 2}, 3), cos(kFloat, {seq, dim / 2}), sin(kFloat, {seq, dim / 2});
  for (size_t i = 0; i < size_t(angles.numel()); ++i)
    cos.put(i, std::cos(angles.at(i))), sin.put(i, std::sin(angles.at(i)));
  Guarded dx(kFloat, {rows, width}, dy.values());
  auto op = [&](const Guarded& qkv, bool inverse) {
    return Rotary{.qkv = qkv,
                  .cos = cos,
                  .sin = sin,
                  .seq = seq,
                  .heads = heads,
                  .kv_heads = kv,
                  .head_dim = dim,
                  .inverse = inverse};
  };
  TestStream s;
  launch(op(dx, true), s);
  expect_gradient(
      x, dx.values(),
      [&] {
        y.set(x.values());
        launch(op(y, false), s);
        return dot(y.values(), dy.values());
      },
      "qkv");
}

TEST_P(GradientKernel, OfAttention) {
  const int64_t batch = 2, seq = 70, heads = 4, kv = 2, dim = 12, rows = batch * seq;
  Guarded qkv = some({rows, (heads + 2 * kv) * dim}, 1), dqkv(kFloat, {rows, (heads + 2 * kv) * dim});
  Guarded y(kFloat, {rows, heads * dim}), dy = some({rows, heads * dim}, 2), lse(kFloat, {batch, heads, seq});
  Guarded documents(DType::int32, {batch, seq}, document_starts(batch, seq, 3));
  TestStream s;
  const std::pair<AttentionMask, float> cases[] = {
      {{}, 0.0f}, {{.window = 9}, 0.0f}, {{.documents = documents}, 0.0f}, {{.window = 20}, 1.2f}};
  for (const auto& [the_mask, the_cap] : cases) {
    const AttentionMask mask = the_mask;
    const float cap = the_cap;
    // Rebuilt each time, because naming an operand copies it to the GPU.
    const auto forward = [&] {
      return AttentionForward{.y = y,
                              .lse = lse,
                              .qkv = qkv,
                              .batch = batch,
                              .seq = seq,
                              .heads = heads,
                              .kv_heads = kv,
                              .head_dim = dim,
                              .scale = 0.4f,
                              .cap = cap,
                              .mask = mask};
    };
    auto loss = [&] {
      launch(forward(), s);
      return dot(y.values(), dy.values());
    };
    loss();
    launch(AttentionBackward{dqkv, dy, forward()}, s);
    expect_gradient(qkv, dqkv.values(), loss, "qkv");
  }
}

TEST_P(GradientKernel, OfCrossEntropy) {
  const int64_t rows = 9, vocab = 37;
  Guarded x = some({rows, vocab}, 1), work(kFloat, {rows, vocab}), losses(kFloat, {rows}),
          targets(DType::int32, {rows});
  for (size_t i = 0; i < size_t(rows); ++i) targets.put(i, i == 4 ? -100 : double(i * 5 % size_t(vocab)));
  TestStream s;
  for (const float cap : {0.0f, 2.0f}) {
    auto run = [&](float scale) {
      work.set(x.values());
      if (cap > 0) launch(SoftCap{.y = work, .x = work, .cap = cap}, s);
      launch(CrossEntropy{.logits = work,
                          .losses = losses,
                          .targets = targets,
                          .vocab = vocab,
                          .scale = scale,
                          .cap = cap},
             s);
      double sum = 0;
      for (double l : losses.values()) sum += l;
      return sum;
    };
    run(1);
    expect_gradient(
        x, work.values(), [&] { return run(0); }, "logits");
  }
}

TEST_P(GradientKernel, OfEmbedding) {
  const int64_t rows = 24, width = 10, vocab = 7, seq = 8;
  Guarded tokens(DType::int32, {rows}), wte = some({vocab, width}, 1), wpe = some({seq, width}, 2),
                                        y(kFloat, {rows, width});
  Guarded dy = some({rows, width}, 3), dwte(kFloat, {vocab, width}), dwpe(kFloat, {seq, width});
  for (size_t i = 0; i < size_t(rows); ++i) tokens.put(i, double(i * i % size_t(vocab)));
  TestStream s;
  auto loss = [&] {
    launch(EmbeddingForward{.y = y, .tokens = tokens, .wte = wte, .wpe = wpe, .seq = seq}, s);
    return dot(y.values(), dy.values());
  };
  launch(EmbeddingBackward{.dwte = dwte, .dwpe = dwpe, .dy = dy, .tokens = tokens, .seq = seq}, s);
  expect_gradient(wte, dwte.values(), loss, "wte");
  expect_gradient(wpe, dwpe.values(), loss, "wpe");
}

TEST_P(GradientKernel, OfALinearLayer) {
  const int64_t rows = 33, in = 21, out = 18;
  Guarded x = some({rows, in}, 1), w = some({out, in}, 2), b = some({out}, 3), y(kFloat, {rows, out}),
          dy = some({rows, out}, 4);
  Guarded dx(kFloat, {rows, in}), dw(kFloat, {out, in}, Values(size_t(out * in), 0.0)), db(kFloat, {out});
  TestStream s;
  auto loss = [&] {
    launch(Matmul{.c = y, .a = x, .b = w, .bias = b, .transpose_b = true}, s);
    return dot(y.values(), dy.values());
  };
  launch(Matmul{.c = dx, .a = dy, .b = w}, s);
  launch(Matmul{.c = dw, .a = dy, .b = x, .transpose_a = true, .accumulate = true}, s);
  launch(BiasGradient{.db = db, .dy = dy}, s);
  expect_gradient(x, dx.values(), loss, "x");
  expect_gradient(w, dw.values(), loss, "weight");
  expect_gradient(b, db.values(), loss, "bias");
}

}  // namespace
}  // namespace cleave::kernels
