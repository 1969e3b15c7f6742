#include "model/attention.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "comm/communicator.h"

namespace cleave::model {
namespace {

constexpr int64_t kSamples = 2, kSeq = 24, kHeads = 4, kHeadDim = 4, kWidth = kHeads * kHeadDim;

std::vector<float> normal(int64_t numel, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> next;
  std::vector<float> x(static_cast<size_t>(numel));
  for (float& v : x) v = next(engine);
  return x;
}

struct Masked {
  int64_t window;
  std::vector<int32_t> documents;  // [kSamples, kSeq], or empty
};

// Output and input gradient of this rank's rows of all samples, sample 0 first.
struct Result {
  std::vector<float> out, dqkv;
};

Result attend(const tensor_parallel::SequenceAxis& axis, Masked mask) {
  const Attention attention(
      {.seq = kSeq, .heads = kHeads, .kv_heads = kHeads, .head_dim = kHeadDim, .window = mask.window}, axis);
  const Range mine = axis.positions(kSeq);
  const int64_t n = axis.size(), rows = kSamples * mine.size(), all = rows * n;
  const std::vector<float> whole_qkv = normal(kSamples * kSeq * 3 * kWidth, 1),
                           whole_dout = normal(kSamples * kSeq * kWidth, 2);
  const auto part = [&](const std::vector<float>& whole, int64_t width) {
    std::vector<float> x;
    for (int64_t s = 0; s < kSamples; ++s)
      x.insert(x.end(), whole.begin() + (s * kSeq + mine.begin) * width,
               whole.begin() + (s * kSeq + mine.end) * width);
    return x;
  };
  std::vector<std::byte> memory(1 << 20);
  Arena arena(Tensor(memory.data(), DType::uint8, {int64_t(memory.size())}));
  const auto filled = [&](const std::vector<float>& values, Shape shape) {
    const Tensor x = arena.take(DType::fp32, shape);
    std::memcpy(x.raw(), values.data(), values.size() * sizeof(float));
    return x;
  };
  Attention::Kept kept{.qkv = arena.take(DType::fp32, {all, 3 * kWidth / n}),
                       .y = arena.take(DType::fp32, {all, kWidth / n}),
                       .lse = arena.take(DType::fp32, {kSamples, kHeads / n, kSeq}),
                       .out = {}};
  kept.out = n == 1 ? kept.y : arena.take(DType::fp32, {rows, kWidth});
  Stream stream;
  const Attention::Call call{
      .scratch = arena,
      .stream = stream,
      .what = "attention",
      .rotation = {},
      .documents =
          mask.documents.empty() ? Tensor() : Tensor(mask.documents.data(), DType::int32, {kSamples, kSeq})};
  const Tensor qkv = attention.input(kept, arena);
  std::memcpy(qkv.raw(), part(whole_qkv, 3 * kWidth).data(), size_t(qkv.bytes()));
  attention.forward(kept, qkv, call);
  const Tensor dqkv = arena.take(DType::fp32, {rows, 3 * kWidth});
  attention.backward(dqkv, filled(part(whole_dout, kWidth), {rows, kWidth}), kept, call);
  stream.synchronize();
  const auto values = [](const Tensor& x) {
    return std::vector<float>(x.as<float>(), x.as<float>() + x.numel());
  };
  return {values(kept.out), values(dqkv)};
}

// Each rank's heads see whole sequences, so masks give the same bits.
TEST(AttentionMasks, HoldOverASequenceAxisAsOnOneRank) {
  std::vector<int32_t> documents(size_t(kSamples * kSeq), 0);
  for (size_t i = 7; i < 24; ++i) documents[i] = 7;  // in sample 0; its second half is on another rank
  for (size_t i = 17; i < 24; ++i) documents[24 + i] = 17;
  const Result causal = attend({}, {0, {}});
  for (const Masked& mask : {Masked{5, {}}, Masked{0, documents}, Masked{9, documents}}) {
    const Result whole = attend({}, mask);
    EXPECT_NE(whole.out, causal.out);
    EXPECT_NE(whole.dqkv, causal.dqkv);
    for (int ranks : {2, 4})
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        const tensor_parallel::SequenceAxis axis(world);
        const Range mine = axis.positions(kSeq);
        const Result cut = attend(axis, mask);
        const auto same = [&](const std::vector<float>& got, const std::vector<float>& want, int64_t width) {
          for (int64_t s = 0, at = 0; s < kSamples; ++s)
            for (int64_t i = mine.begin * width; i < mine.end * width; ++i, ++at)
              if (got[size_t(at)] != want[size_t(s * kSeq * width + i)]) return false;
          return true;
        };
        EXPECT_TRUE(same(cut.out, whole.out, kWidth)) << ranks << " ranks";
        EXPECT_TRUE(same(cut.dqkv, whole.dqkv, 3 * kWidth)) << ranks << " ranks";
      });
  }
}

}  // namespace
}  // namespace cleave::model
