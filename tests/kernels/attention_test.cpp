#include "kernels/attention.h"

#include "tests/kernels/cases/attention.h"
#include "tests/kernels/guarded.h"

namespace cleave {
namespace {

KERNEL_SUITE(Attention);

// Plain attention in double precision and its derivative by the chain rule on the full matrix.
struct Oracle {
  AttentionCase c;
  Values qkv, y, lse, dqkv;

  size_t at(int64_t b, int64_t t, int64_t head, int64_t d) const {
    return size_t(((b * c.seq + t) * (c.heads + 2 * c.kv_heads) + head) * c.head_dim + d);
  }
  size_t out(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return size_t(((b * c.seq + t) * c.heads + h) * c.head_dim + d);
  }
  int64_t key_head(int64_t h) const { return c.heads + h / (c.heads / c.kv_heads); }
  int64_t value_head(int64_t h) const { return key_head(h) + c.kv_heads; }

  Values probabilities(int64_t b, int64_t h, int64_t i) {
    Values p(size_t(i + 1), 0.0);
    double top = -1e300, sum = 0;
    for (int64_t j = 0; j <= i; ++j) {
      for (int64_t d = 0; d < c.head_dim; ++d)
        p[size_t(j)] += qkv[at(b, i, h, d)] * qkv[at(b, j, key_head(h), d)];
      p[size_t(j)] /= std::sqrt(double(c.head_dim));
      top = std::max(top, p[size_t(j)]);
    }
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    lse[size_t((b * c.heads + h) * c.seq + i)] = top + std::log(sum);
    return p;
  }

  void forward() {
    y.assign(size_t(c.batch * c.seq * c.heads * c.head_dim), 0);
    lse.assign(size_t(c.batch * c.heads * c.seq), 0);
    each([&](int64_t b, int64_t h, int64_t i) {
      const Values p = probabilities(b, h, i);
      for (int64_t j = 0; j <= i; ++j)
        for (int64_t d = 0; d < c.head_dim; ++d)
          y[out(b, i, h, d)] += p[size_t(j)] * qkv[at(b, j, value_head(h), d)];
    });
  }

  void backward(const Values& dy) {
    dqkv.assign(qkv.size(), 0);
    const double scale = 1 / std::sqrt(double(c.head_dim));
    each([&](int64_t b, int64_t h, int64_t i) {
      const Values p = probabilities(b, h, i);
      double delta = 0;
      for (int64_t d = 0; d < c.head_dim; ++d) delta += dy[out(b, i, h, d)] * y[out(b, i, h, d)];
      for (int64_t j = 0; j <= i; ++j) {
        double dp = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) dp += dy[out(b, i, h, d)] * qkv[at(b, j, value_head(h), d)];
        const double ds = p[size_t(j)] * (dp - delta) * scale;
        for (int64_t d = 0; d < c.head_dim; ++d) {
          dqkv[at(b, i, h, d)] += ds * qkv[at(b, j, key_head(h), d)];
          dqkv[at(b, j, key_head(h), d)] += ds * qkv[at(b, i, h, d)];
          dqkv[at(b, j, value_head(h), d)] += p[size_t(j)] * dy[out(b, i, h, d)];
        }
      }
    });
  }

  template <class Body>
  void each(Body body) {
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t i = 0; i < c.seq; ++i) body(b, h, i);
  }
};

// A GPU's tensor cores take the probabilities and their gradients in 16 bits, each off by half an ulp. In y
// their sum is 1 and values reach 4.5; in gradients up to 24 of them meet queries of this size.
bool rounds_inside(DType type) { return Place::current() && type != DType::fp32; }
double output_bound(DType type) { return 2e-6 + (rounds_inside(type) ? 4.5 * half_ulp(type) : 0); }
// Backward reads the rounded y, which 16-bit storage puts off by half an ulp of it.
double gradient_bound(DType type) {
  return type == DType::fp32 ? 1e-5 : (rounds_inside(type) ? 24 : 8) * half_ulp(type);
}

TEST_P(AttentionKernel, ForwardAndBackwardEqualDoublePrecision) {
  for (const AttentionCase& c : kAttentionCases)
    for (DType type : kTrainingTypes) {
      SCOPED_TRACE(
          fmt::format("seq {} heads {}/{} dim {} {}", c.seq, c.heads, c.kv_heads, c.head_dim, name_of(type)));
      const int64_t rows = c.batch * c.seq, wide = (c.heads + 2 * c.kv_heads) * c.head_dim,
                    narrow = c.heads * c.head_dim;
      Guarded qkv(type, {rows, wide}, random_values(rows * wide, 1)), dqkv(type, {rows, wide});
      Guarded y(type, {rows, narrow}), dy(type, {rows, narrow}, random_values(rows * narrow, 2));
      Guarded lse(DType::fp32, {c.batch, c.heads, c.seq});
      Oracle oracle{c, qkv.values(), {}, {}, {}};
      oracle.forward();
      oracle.backward(dy.values());
      TestStream stream;
      launch(AttentionForward{.y = y,
                              .lse = lse,
                              .qkv = qkv,
                              .batch = c.batch,
                              .seq = c.seq,
                              .heads = c.heads,
                              .kv_heads = c.kv_heads,
                              .head_dim = c.head_dim},
             stream);
      expect_near(y, oracle.y, half_ulp(type) * 1.01, output_bound(type), "y");
      expect_near(lse, oracle.lse, 1e-6, 2e-6, "lse");
      launch(AttentionBackward{.dqkv = dqkv,
                               .dy = dy,
                               .y = y,
                               .lse = lse,
                               .qkv = qkv,
                               .batch = c.batch,
                               .seq = c.seq,
                               .heads = c.heads,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim},
             stream);
      expect_near(dqkv, oracle.dqkv, half_ulp(type) * 1.01 + 1e-6, gradient_bound(type), "dqkv");
    }
}

}  // namespace
}  // namespace cleave
