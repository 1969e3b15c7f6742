#include "tensor_parallel/sequence_axis.h"

#include "tests/scratch.h"

namespace cleave::tensor_parallel {
namespace {

TEST(SequenceAxis, OfOneRankMovesNothing) {
  const SequenceAxis axis;
  EXPECT_EQ(axis.positions(7), (Range{0, 7}));
  EXPECT_EQ(axis.heads(5, 3).heads, 5);
  float x[4] = {1, 2, 3, 4};
  Arena scratch;
  Stream stream;
  const Tensor tokens(x, DType::fp32, {2, 2}), twin = axis.twin_of(tokens, {{2}}, scratch);
  EXPECT_EQ(twin.raw(), tokens.raw());
  axis.to_heads(twin, tokens, {{2}}, 2, scratch, stream, "x");
  axis.to_tokens(tokens, twin, {{2}}, 2, scratch, stream, "x");
  EXPECT_EQ(scratch.peak_bytes(), 0);
  EXPECT_EQ(x[3], 4);
}

// Each element's value encodes its place in the whole: sample, position and column.
TEST(SequenceAxis, ExchangesHeadsOfItsPositionsForPositionsOfItsHeads) {
  const int64_t samples = 3, seq = 12, q = 12, kv = 6, width = q + 2 * kv;
  const auto value = [&](int64_t sample, int64_t position, int64_t column) {
    return float((sample * seq + position) * width + column);
  };
  for (int ranks : {2, 3})
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      const SequenceAxis axis(world);
      const Range mine = axis.positions(seq);
      const int64_t local = mine.size(), n = axis.size(), each = width / n;
      std::vector<float> x, y(size_t(samples * local * width)), memory(1 << 14);
      for (int64_t s = 0; s < samples; ++s)
        for (int64_t p = mine.begin; p < mine.end; ++p)
          for (int64_t c = 0; c < width; ++c) x.push_back(value(s, p, c));
      Arena scratch(Tensor(memory.data(), DType::uint8, {int64_t(memory.size() * 4)}));
      Stream stream;
      const Tensor tokens(x.data(), DType::fp32, {samples * local, width}),
          back(y.data(), DType::fp32, {samples * local, width});
      const HeadGroups groups{{q, kv, kv}};
      const Tensor twin = axis.twin_of(tokens, groups, scratch);
      ASSERT_EQ(twin.shape(), (Shape{samples * seq, each}));
      axis.to_heads(twin, tokens, groups, local, scratch, stream, "x");
      for (int64_t s = 0; s < samples; ++s)
        for (int64_t p = 0; p < seq; ++p)
          for (int64_t c = 0; c < each; ++c) {
            const bool in_q = c < q / n, in_k = c < (q + kv) / n;
            const int64_t whole = in_q   ? world.rank() * q / n + c
                                  : in_k ? q + world.rank() * kv / n + c - q / n
                                         : q + kv + world.rank() * kv / n + c - (q + kv) / n;
            ASSERT_EQ(twin.as<float>()[(s * seq + p) * each + c], value(s, p, whole)) << s << p << c;
          }
      axis.to_tokens(back, twin, groups, local, scratch, stream, "x");
      EXPECT_EQ(y, x);
      const int64_t moved = samples * local * width * 4 * (n - 1) / n;
      EXPECT_EQ(world.bytes()[comm::Collective::all_to_all], 2 * moved);
    });
}

// 4 ranks, 2 key/value heads of 3 columns: two neighbors get the same head, and its gradients are added.
TEST(SequenceAxis, GivesNeighborsTheSameHeadsIfThereAreFewerThanRanks) {
  const int64_t samples = 2, seq = 8, q = 8, kv = 6, width = q + 2 * kv, ranks = 4, each = q / ranks + 3 + 3;
  const HeadGroups groups{.widths = {q, kv, kv}, .copies = {1, 2, 2}};
  const auto value = [&](int64_t row, int64_t column) { return float(row * width + column); };
  comm::run_ranks(int(ranks), [&](comm::Communicator& world) {
    const SequenceAxis axis(world);
    const Range mine = axis.positions(seq);
    const int64_t local = mine.size(), rank = world.rank();
    const auto row_of = [&](int64_t local_row) {
      return local_row / local * seq + mine.begin + local_row % local;
    };
    std::vector<float> x, y(size_t(samples * local * width)), memory(1 << 12);
    for (int64_t r = 0; r < samples * local; ++r)
      for (int64_t c = 0; c < width; ++c) x.push_back(value(row_of(r), c));
    Arena scratch(Tensor(memory.data(), DType::uint8, {int64_t(memory.size() * 4)}));
    Stream stream;
    const Tensor tokens(x.data(), DType::fp32, {samples * local, width}),
        back(y.data(), DType::fp32, {samples * local, width});
    const Tensor twin = axis.twin_of(tokens, groups, scratch);
    ASSERT_EQ(twin.shape(), (Shape{samples * seq, each}));
    axis.to_heads(twin, tokens, groups, local, scratch, stream, "x");
    for (int64_t row = 0; row < samples * seq; ++row)
      for (int64_t c = 0; c < each; ++c) {
        const int64_t whole = c < 2   ? rank * 2 + c
                              : c < 5 ? q + rank / 2 * 3 + c - 2
                                      : q + kv + rank / 2 * 3 + c - 5;
        float& got = twin.as<float>()[row * each + c];
        ASSERT_EQ(got, value(row, whole)) << row << " " << c;
        got += 1000.0f * float(rank);
      }
    axis.to_tokens(back, twin, groups, local, scratch, stream, "x");
    for (int64_t r = 0; r < samples * local; ++r)
      for (int64_t c = 0; c < width; ++c) {
        const int64_t head = (c - q) % kv / 3;
        const float want = c < q ? value(row_of(r), c) + 1000.0f * float(c / 2)
                                 : 2 * value(row_of(r), c) + 1000.0f * float(4 * head + 1);
        ASSERT_EQ(y[size_t(r * width + c)], want) << r << " " << c;
      }
  });
}

TEST(SequenceAxis, NamesTheSizesThatWouldWork) {
  comm::run_ranks(4, [](comm::Communicator& world) {
    const SequenceAxis axis(world);
    EXPECT_EQ(axis.heads(8, 4).kv_heads, 1);
    expect_error(Exit::usage, {"10 positions", "4 ranks (expected", "1, 2, 5, 10"},
                 [&] { axis.positions(10); });
    EXPECT_EQ(axis.heads(8, 2).kv_heads, 1);
    EXPECT_EQ(axis.heads(8, 2).copies, 2);
    expect_error(Exit::usage,
                 {"12 heads with 6 key/value heads cannot be divided among", "4 ranks (expected",
                  "expected 1, 2, 3, 6, 12"},
                 [&] { axis.heads(12, 6); });
  });
}

TEST(SequenceAxis, SendsNothingInADryRun) {
  comm::run_ranks(2, [](comm::Communicator& world) {
    const SequenceAxis axis(world);
    Arena dry;
    Stream stream(Stream::Mode::discard);
    const Tensor tokens(nullptr, DType::fp32, {4, 8}), twin = axis.twin_of(tokens, {{8}}, dry);
    axis.to_heads(twin, tokens, {{8}}, 4, dry, stream, "x");
    axis.to_tokens(tokens, twin, {{8}}, 4, dry, stream, "x");
    EXPECT_EQ(dry.peak_bytes(), 3 * 4 * 8 * 4);
    EXPECT_EQ(world.bytes(), comm::CommBytes{});
  });
}

}  // namespace
}  // namespace cleave::tensor_parallel
