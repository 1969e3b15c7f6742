#include "kernels/cpu/attention.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/bodies.h"
#include "tests/kernels/cases/attention.h"
#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Attention);

// Plain attention in double precision, with its derivative by the chain rule on the full matrix.
struct Oracle {
  AttentionCase c;
  Values qkv, documents, y, lse, dqkv;
  AttentionDropout dropout = {};

  // By definition, one number at a time.
  double factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t head = (dropout.first_sample + b) * dropout.all_heads + dropout.first_head + h;
    if (dropout.p == 0) return 1;
    const bool kept = dropout.philox.uniform(uint64_t((head * c.seq + i) * c.seq + j)) >= dropout.p;
    return kept ? 1 / (1 - double(dropout.p)) : 0;
  }

  bool sees(int64_t b, int64_t i, int64_t j) const {
    const auto document = [&](int64_t t) { return documents[size_t(b * c.seq + t)]; };
    return (j <= i || !c.causal) && (c.window == 0 || i - j < c.window) &&
           (documents.empty() || document(i) == document(j));
  }

  size_t at(int64_t b, int64_t t, int64_t head, int64_t d) const {
    return size_t(((b * c.seq + t) * (c.heads + 2 * c.kv_heads) + head) * c.head_dim + d);
  }
  size_t out(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return size_t(((b * c.seq + t) * c.heads + h) * c.head_dim + d);
  }
  int64_t key_head(int64_t h) const { return c.heads + h / (c.heads / c.kv_heads); }
  int64_t value_head(int64_t h) const { return key_head(h) + c.kv_heads; }

  int64_t keys(int64_t i) const { return c.causal ? i + 1 : c.seq; }  // keys visible to query i

  double scale() const { return c.scale != 0 ? double(c.scale) : 1 / std::sqrt(double(c.head_dim)); }
  // Slope of the cap at the score with this probability.
  double slope(double p, int64_t b, int64_t h, int64_t i) const {
    if (c.cap == 0 || p == 0) return 1;
    const double t = (std::log(p) + lse[size_t((b * c.heads + h) * c.seq + i)]) / c.cap;
    return 1 - t * t;
  }

  Values probabilities(int64_t b, int64_t h, int64_t i) {
    Values p(size_t(keys(i)), 0.0);
    double top = -1e300, sum = 0;
    for (int64_t j = 0; j < keys(i); ++j) {
      if (!sees(b, i, j)) {
        p[size_t(j)] = -INFINITY;
        continue;
      }
      for (int64_t d = 0; d < c.head_dim; ++d)
        p[size_t(j)] += qkv[at(b, i, h, d)] * qkv[at(b, j, key_head(h), d)];
      p[size_t(j)] *= scale();
      if (c.cap > 0) p[size_t(j)] = c.cap * std::tanh(p[size_t(j)] / c.cap);
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
      for (int64_t j = 0; j < keys(i); ++j)
        for (int64_t d = 0; d < c.head_dim; ++d)
          y[out(b, i, h, d)] += p[size_t(j)] * factor(b, h, i, j) * qkv[at(b, j, value_head(h), d)];
    });
  }

  void backward(const Values& dy) {
    dqkv.assign(qkv.size(), 0);
    each([&](int64_t b, int64_t h, int64_t i) {
      const Values p = probabilities(b, h, i);
      double delta = 0;
      for (int64_t d = 0; d < c.head_dim; ++d) delta += dy[out(b, i, h, d)] * y[out(b, i, h, d)];
      for (int64_t j = 0; j < keys(i); ++j) {
        double dp = 0;
        for (int64_t d = 0; d < c.head_dim; ++d) dp += dy[out(b, i, h, d)] * qkv[at(b, j, value_head(h), d)];
        const double dropped = factor(b, h, i, j),
                     ds = p[size_t(j)] * (dp * dropped - delta) * slope(p[size_t(j)], b, h, i) * scale();
        for (int64_t d = 0; d < c.head_dim; ++d) {
          dqkv[at(b, i, h, d)] += ds * qkv[at(b, j, key_head(h), d)];
          dqkv[at(b, j, key_head(h), d)] += ds * qkv[at(b, i, h, d)];
          dqkv[at(b, j, value_head(h), d)] += p[size_t(j)] * dropped * dy[out(b, i, h, d)];
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

// GPU tensor cores and the CPU's bf16 instructions use 16-bit probabilities and gradients, each off by half
// an ulp. In y their sum is 1 and values reach 4.5; in gradients, up to 24 of them meet queries of this size.
bool rounds_inside(DType type) {
  if (TestDevice::current()) return type != DType::fp32;
  const cpu::Bf16Way way = cpu::bf16_products().way;
  return type == DType::bf16 && (way == cpu::Bf16Way::dots || way == cpu::Bf16Way::tiles);
}
double output_bound(DType type, bool rounds) { return 2e-6 + (rounds ? 4.5 * half_ulp(type) : 0); }
// Backward reads the rounded y, which is off by half an ulp in 16-bit storage.
double gradient_bound(DType type, bool rounds) {
  return type == DType::fp32 ? 1e-5 : (rounds ? 24 : 8) * half_ulp(type);
}

// Runs the forward and the backward.
template <class Run>
void expect_double_precision(const AttentionCase& c, DType type, bool rounds, const Run& run) {
  SCOPED_TRACE(
      fmt::format("seq {} heads {}/{} dim {} window {} documents {} dropout {} causal {} "
                  "cap {} scale {} {}",
                  c.seq, c.heads, c.kv_heads, c.head_dim, c.window, c.documents, c.dropout, c.causal, c.cap,
                  c.scale, name_of(type)));
  const int64_t rows = c.batch * c.seq, wide = (c.heads + 2 * c.kv_heads) * c.head_dim,
                narrow = c.heads * c.head_dim;
  Guarded qkv(type, {rows, wide}, random_values(rows * wide, 1)), dqkv(type, {rows, wide});
  Guarded y(type, {rows, narrow}), dy(type, {rows, narrow}, random_values(rows * narrow, 2));
  Guarded lse(DType::fp32, {c.batch, c.heads, c.seq});
  Guarded documents;
  if (c.documents)
    documents = Guarded(DType::int32, {c.batch, c.seq}, document_starts(c.batch, c.seq, c.documents));
  const AttentionMask mask{c.causal, c.window, c.documents ? documents.tensor() : Tensor()};
  const AttentionDropout dropout{c.dropout, {7, 0x123456789abcull}, 5, 2, c.heads + 3};
  Oracle oracle{c, qkv.values(), c.documents ? documents.values() : Values(), {}, {}, {}, dropout};
  oracle.forward();
  oracle.backward(dy.values());
  const AttentionForward forward{.y = y,
                                 .lse = lse,
                                 .qkv = qkv,
                                 .batch = c.batch,
                                 .seq = c.seq,
                                 .heads = c.heads,
                                 .kv_heads = c.kv_heads,
                                 .head_dim = c.head_dim,
                                 .scale = c.scale,
                                 .cap = c.cap,
                                 .mask = mask,
                                 .dropout = dropout};
  run(forward);
  expect_near(y, oracle.y, half_ulp(type) * 1.01, output_bound(type, rounds), "y");
  expect_near(lse, oracle.lse, 1e-6, 2e-6, "lse");
  run(AttentionBackward{dqkv, dy, forward});
  expect_near(dqkv, oracle.dqkv, half_ulp(type) * 1.01 + 1e-6, gradient_bound(type, rounds), "dqkv");
}

TEST_P(AttentionKernel, ForwardAndBackwardEqualDoublePrecision) {
  TestStream stream;
  for (const AttentionCase& c : kAttentionCases)
    for (DType type : kTrainingTypes)
      expect_double_precision(c, type, rounds_inside(type), [&](const auto& op) { launch(op, stream); });
}

// Bodies for the CPU's bf16 instructions, on models of these.
struct ModelBodies {
  const char* name;
  cpu::AttentionBody forward, backward;
  void operator()(const AttentionForward& op) const { run_by(forward, op); }
  void operator()(const AttentionBackward& op) const { run_by(backward, op); }
};
void PrintTo(const ModelBodies& bodies, std::ostream* out) { *out << bodies.name; }
class AttentionByModel : public ::testing::TestWithParam<ModelBodies> {};
INSTANTIATE_TEST_SUITE_P(Of, AttentionByModel,
                         ::testing::Values(ModelBodies{"AVX512_BF16", cpu::v4::attention_dots_by_model,
                                                       cpu::v4::attention_grad_dots_by_model},
                                           ModelBodies{"AMX", cpu::v4::attention_tiles_by_model,
                                                       cpu::v4::attention_grad_tiles_by_model}),
                         [](const auto& body) { return body.param.name; });

TEST_P(AttentionByModel, EqualsDoublePrecision) {
  if (cpu::isa() != cpu::Isa::v4) GTEST_SKIP() << "its operands are packed with AVX-512";
  for (const AttentionCase& c : kAttentionCases) expect_double_precision(c, DType::bf16, true, GetParam());
}

// Runs forward and backward of one sequence with NaN in its first `poisoned` rows. 384 rows are whole blocks
// of every kernel, so rows from there on stay finite exactly if the kernels skip invisible blocks: zero times
// NaN would be NaN. A window of 97 begins with a tile of 96 keys, and leaves 256 rows to tiles of 64 and 128.
void expect_numbers_from_384(int64_t poisoned, const AttentionMask& mask, DType type) {
  const int64_t seq = 768, heads = 2, kv = 1, dim = 64, narrow = heads * dim, wide = (heads + 2 * kv) * dim;
  Values rows = random_values(seq * wide, 1), gradients = random_values(seq * narrow, 2);
  std::fill_n(rows.begin(), poisoned * wide, NAN);
  std::fill_n(gradients.begin(), poisoned * narrow, NAN);
  Guarded qkv(type, {seq, wide}, rows), dy(type, {seq, narrow}, gradients);
  Guarded y(type, {seq, narrow}), dqkv(type, {seq, wide}), lse(DType::fp32, {1, heads, seq});
  TestStream stream;
  AttentionForward forward{.y = y, .lse = lse, .qkv = qkv, .batch = 1, .seq = seq, .mask = mask};
  forward.heads = heads, forward.kv_heads = kv, forward.head_dim = dim;
  launch(forward, stream);
  launch(AttentionBackward{dqkv, dy, forward}, stream);
  for (int64_t i = 384; i < seq; ++i)
    for (int64_t d = 0; d < wide; ++d) {
      ASSERT_TRUE(std::isfinite(dqkv.at(size_t(i * wide + d)))) << "dqkv of row " << i;
      ASSERT_TRUE(d >= narrow || std::isfinite(y.at(size_t(i * narrow + d)))) << "y of row " << i;
    }
}

TEST_P(AttentionKernel, SkipsHiddenBlocks) {
  Guarded documents(DType::int32, {1, 768}, document_starts(1, 768, 2));
  for (DType type : kTrainingTypes) {
    SCOPED_TRACE(name_of(type));
    expect_numbers_from_384(256, {.window = 97}, type);
    expect_numbers_from_384(384, {.documents = documents}, type);
    expect_numbers_from_384(384, {.window = 300, .documents = documents}, type);
  }
}

// A window over all positions has no effect: the same kernels, the same bits.
TEST_P(AttentionKernel, AWindowOverAllPositionsHasTheBitsOfNoWindow) {
  const int64_t seq = 150, heads = 2, dim = 64, narrow = heads * dim;
  for (DType type : kTrainingTypes) {
    Guarded qkv(type, {seq, 3 * narrow}, random_values(seq * 3 * narrow, 1)),
        y[3] = {{type, {seq, narrow}}, {type, {seq, narrow}}, {type, {seq, narrow}}};
    Guarded lse(DType::fp32, {1, heads, seq});
    TestStream stream;
    for (size_t i = 0; i < 3; ++i) {
      AttentionForward op{.y = y[i], .lse = lse, .qkv = qkv, .seq = seq, .heads = heads, .kv_heads = heads};
      op.head_dim = dim, op.mask.window = i == 0 ? 0 : i == 1 ? seq : 1000;
      launch(op, stream);
    }
    EXPECT_EQ(y[0].bits(), y[1].bits());
    EXPECT_EQ(y[0].bits(), y[2].bits());
  }
}

TEST(AttentionFlops, CountVisiblePairs) {
  for (const auto& [seq, window] :
       {std::pair<int64_t, int64_t>{1, 0}, {7, 0}, {7, 1}, {7, 3}, {7, 7}, {7, 9}, {100, 31}}) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < seq; ++i)
      for (int64_t j = 0; j <= i; ++j) pairs += window == 0 || i - j < window;
    AttentionForward forward;
    forward.batch = 3, forward.seq = seq, forward.heads = 4, forward.head_dim = 5;
    forward.mask.window = window;
    const AttentionBackward backward{{}, {}, forward};
    EXPECT_EQ(forward.flops(), double(3 * 4 * pairs * 5 * 2 * 2)) << seq << " " << window;
    EXPECT_EQ(backward.flops(), double(3 * 4 * pairs * 5 * 2 * 5)) << seq << " " << window;
  }
}

// On the CPU the kernel itself reads the documents; a start before the sequence would be an invalid address.
TEST(AttentionDocuments, RejectStartsOutsideTheirSequence) {
  Guarded qkv(DType::fp32, {4, 12}), y(DType::fp32, {4, 4}), lse(DType::fp32, {8});
  AttentionForward op{.y = y, .lse = lse, .qkv = qkv, .seq = 4, .heads = 2, .kv_heads = 2, .head_dim = 2};
  for (const Values& starts : {Values{0, 0, 3, 3}, {0, -1, 0, 0}, {1, 1, 1, 1}, {0, 1, 0, 0}}) {
    Guarded documents(DType::int32, {1, 4}, starts);
    op.mask.documents = documents;
    TestStream stream;
    try {
      launch(op, stream);
      FAIL() << "took " << starts[0] << " " << starts[1] << " " << starts[2];
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("must begin in"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace cleave::kernels
