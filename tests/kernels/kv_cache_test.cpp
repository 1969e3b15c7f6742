#include "kernels/kv_cache.h"

#include <numeric>

#include "kernels/attention.h"
#include "tests/kernels/guarded.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(KvCacheAttention);

struct CacheCase {
  int64_t texts, positions, heads, kv_heads, head_dim, window;
  float cap = 0, scale = 0;
};
// Runs of keys that end inside, at and after blocks of 4, 32 and 64; head dims that fill vectors and that do
// not.
constexpr CacheCase kCacheCases[] = {{1, 1, 1, 1, 2, 0},          {2, 5, 4, 2, 16, 0},
                                     {3, 70, 3, 3, 20, 0},        {2, 129, 4, 1, 64, 0},
                                     {1, 200, 2, 2, 128, 0},      {2, 64, 6, 2, 96, 0},
                                     {2, 150, 4, 2, 64, 33},      {1, 90, 2, 1, 40, 1},
                                     {1, 65, 2, 2, 80, 65},       {2, 90, 4, 2, 20, 0, 1.5f, 0.3f},
                                     {1, 70, 2, 1, 256, 9, 50, 0}};

// Some positions of all texts, newest first, with padding in between.
struct Rows {
  std::vector<int32_t> texts, positions;
  int64_t count() const { return int64_t(texts.size()); }
};
Rows rows_of(const CacheCase& c) {
  Rows rows;
  for (int64_t t = c.texts; t-- > 0;) {
    for (int64_t p = c.positions - 1 - t; p >= 0; p -= p > 8 ? 5 : 1)
      rows.texts.push_back(int32_t(t)), rows.positions.push_back(int32_t(p));
    rows.texts.push_back(-1), rows.positions.push_back(0);
  }
  return rows;
}
Values as_values(const std::vector<int32_t>& v) { return {v.begin(), v.end()}; }

// Plain attention over [texts, kv_heads, positions, head_dim] in double precision.
Values attended(const CacheCase& c, const Rows& rows, const Values& qkv, const Values& keys,
                const Values& values) {
  const int64_t d = c.head_dim, width = (c.heads + 2 * c.kv_heads) * d;
  Values y(size_t(rows.count() * c.heads * d), 0.0);
  for (int64_t r = 0; r < rows.count(); ++r)
    for (int64_t h = 0; h < c.heads && rows.texts[size_t(r)] >= 0; ++h) {
      const int64_t kv = (rows.texts[size_t(r)] * c.kv_heads + h / (c.heads / c.kv_heads)) * c.positions * d;
      Values p;
      for (int64_t k = 0; k <= rows.positions[size_t(r)]; ++k) {
        double dot = 0;
        for (int64_t i = 0; i < d; ++i)
          dot += qkv[size_t(r * width + h * d + i)] * keys[size_t(kv + k * d + i)];
        const bool seen = c.window == 0 || rows.positions[size_t(r)] - k < c.window;
        dot *= c.scale != 0 ? double(c.scale) : 1 / std::sqrt(double(d));
        if (c.cap > 0) dot = c.cap * std::tanh(dot / c.cap);
        p.push_back(seen ? dot : -INFINITY);
      }
      const double top = *std::max_element(p.begin(), p.end());
      for (double& x : p) x = std::exp(x - top);
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (size_t k = 0; k < p.size(); ++k)
        for (int64_t i = 0; i < d; ++i)
          y[size_t((r * c.heads + h) * d + i)] += p[k] / sum * values[size_t(kv + int64_t(k) * d + i)];
    }
  return y;
}

TEST_P(KvCacheAttentionKernel, EqualsDoublePrecision) {
  for (const CacheCase& c : kCacheCases)
    for (const DType type : kTrainingTypes) {
      SCOPED_TRACE(fmt::format("{} texts of {}, heads {}/{} of {}, window {}, cap {}, {}", c.texts,
                               c.positions, c.heads, c.kv_heads, c.head_dim, c.window, c.cap, name_of(type)));
      const Rows rows = rows_of(c);
      const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_dim;
      const Shape kept{c.texts, c.kv_heads, c.positions, c.head_dim};
      const Guarded qkv(type, {rows.count(), width}, random_values(rows.count() * width, 1)),
          keys(type, kept, random_values(kept.numel(), 2)),
          values(type, kept, random_values(kept.numel(), 3)),
          texts(DType::int32, {rows.count()}, as_values(rows.texts)),
          positions(DType::int32, {rows.count()}, as_values(rows.positions));
      Guarded y(type, {rows.count(), c.heads * c.head_dim});
      TestStream stream;
      launch(KvCacheAttention{.y = y,
                              .qkv = qkv,
                              .keys = keys,
                              .values = values,
                              .rows = {texts, positions},
                              .heads = c.heads,
                              .window = c.window,
                              .scale = c.scale,
                              .cap = c.cap},
             stream);
      expect_near(y, attended(c, rows, qkv.values(), keys.values(), values.values()), half_ulp(type) * 1.01,
                  2e-6, "y");
    }
}

// Every key and value is stored at its text and position, and nothing else changes.
TEST_P(KvCacheAttentionKernel, StoresKeysAndValuesAtTheirTextAndPosition) {
  for (const CacheCase& c : kCacheCases)
    for (const DType type : kTrainingTypes) {
      const Rows rows = rows_of(c);
      const int64_t d = c.head_dim, width = (c.heads + 2 * c.kv_heads) * d;
      const Shape kept{c.texts, c.kv_heads, c.positions, d};
      const Guarded qkv(type, {rows.count(), width}, random_values(rows.count() * width, 4)),
          texts(DType::int32, {rows.count()}, as_values(rows.texts)),
          positions(DType::int32, {rows.count()}, as_values(rows.positions));
      Guarded keys(type, kept, random_values(kept.numel(), 5)), values(type, kept, keys.values());
      Values want_keys = keys.values(), want_values = values.values();
      const Values from = qkv.values();
      for (int64_t r = 0; r < rows.count(); ++r)
        for (int64_t h = 0; h < c.kv_heads && rows.texts[size_t(r)] >= 0; ++h)
          for (int64_t i = 0; i < d; ++i) {
            const auto to = size_t(
                ((rows.texts[size_t(r)] * c.kv_heads + h) * c.positions + rows.positions[size_t(r)]) * d + i);
            want_keys[to] = from[size_t(r * width + (c.heads + h) * d + i)];
            want_values[to] = from[size_t(r * width + (c.heads + c.kv_heads + h) * d + i)];
          }
      TestStream stream;
      launch(
          WriteKvCache{
              .keys = keys, .values = values, .qkv = qkv, .rows = {texts, positions}, .heads = c.heads},
          stream);
      EXPECT_EQ(keys.values(), want_keys);
      EXPECT_EQ(values.values(), want_values);
    }
}

// The bits of a row do not depend on other rows.
TEST_P(KvCacheAttentionKernel, ARowAloneHasTheSameBits) {
  const CacheCase c{2, 100, 4, 2, 64, 0};
  const Rows rows = rows_of(c);
  const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_dim, out = c.heads * c.head_dim;
  const Shape kept{c.texts, c.kv_heads, c.positions, c.head_dim};
  for (const DType type : kTrainingTypes) {
    const Guarded qkv(type, {rows.count(), width}, random_values(rows.count() * width, 1)),
        keys(type, kept, random_values(kept.numel(), 2)), values(type, kept, random_values(kept.numel(), 3)),
        texts(DType::int32, {rows.count()}, as_values(rows.texts)),
        positions(DType::int32, {rows.count()}, as_values(rows.positions));
    Guarded together(type, {rows.count(), out}), alone(type, {1, out});
    KvCacheAttention op{.y = together,
                        .qkv = qkv,
                        .keys = keys,
                        .values = values,
                        .rows = {texts, positions},
                        .heads = c.heads};
    TestStream stream;
    launch(op, stream);
    const Values all = together.values();
    for (int64_t r = 0; r < rows.count(); r += 3) {
      op.y = alone, op.qkv = qkv.tensor().rows({r, r + 1});
      op.rows = {texts.tensor().slice({r, r + 1}), positions.tensor().slice({r, r + 1})};
      launch(op, stream);
      EXPECT_EQ(alone.values(), Values(all.begin() + r * out, all.begin() + (r + 1) * out)) << r;
    }
  }
}

TEST(KvCacheAttention, RejectsRowsOutsideTheCache) {
  std::vector<float> memory(1024);
  std::vector<int32_t> texts{0, 2}, positions{3, 1};
  const auto floats = [&](int64_t at, Shape shape) {
    return Tensor(memory.data() + at, DType::fp32, shape, MemoryKind::host);
  };
  const auto ints = [](std::vector<int32_t>& v) {
    return Tensor(v.data(), DType::int32, {int64_t(v.size())}, MemoryKind::host);
  };
  const WriteKvCache op{.keys = floats(0, {2, 1, 4, 8}),
                        .values = floats(64, {2, 1, 4, 8}),
                        .qkv = floats(128, {2, 3 * 8}),
                        .rows = {ints(texts), ints(positions)},
                        .heads = 1};
  for (const auto& [row, text, position] : {std::array{1, 2, 1}, {1, -2, 0}, {0, 0, 4}, {0, 1, -1}}) {
    texts = {0, 0}, positions = {0, 1};
    texts[size_t(row)] = text, positions[size_t(row)] = position;
    try {
      cpu::run(op);
      ADD_FAILURE() << "position " << position << " of text " << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.exit(), Exit::internal);
      EXPECT_NE(
          std::string(e.what()).find(fmt::format("row {} is position {} of text {}", row, position, text)),
          std::string::npos)
          << e.what();
    }
  }
}

}  // namespace
}  // namespace cleave::kernels
