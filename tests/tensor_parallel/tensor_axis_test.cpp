#include "tensor_parallel/tensor_axis.h"

#include "tests/scratch.h"

namespace cleave::tensor_parallel {
namespace {

TEST(TensorAxis, OfOneRankMovesNothing) {
  const TensorAxis axis;
  EXPECT_EQ(axis.local_rows(7), 7);
  EXPECT_EQ(axis.mine(5, "heads"), (Range{0, 5}));
  float x[4] = {1, 2, 3, 4};
  Arena scratch;
  Stream stream;
  const Tensor local(x, DType::fp32, {2, 2}), all = axis.all_rows_of(local, scratch);
  EXPECT_EQ(all.raw(), local.raw());
  EXPECT_EQ(scratch.peak_bytes(), 0);
  axis.gather(all, local, stream, "x");
  axis.sum(local, all, stream, "x");
  EXPECT_EQ(x[3], 4);
}

// gather and sum are conjugate: <gather(x), y> over all ranks = <x, sum(y)>.
TEST(TensorAxis, GatherAndSumAreEachOthersGradients) {
  for (bool cut : {false, true})
    comm::run_ranks(3, [cut](comm::Communicator& world) {
      const TensorAxis axis(world, cut);
      const int64_t rows = axis.local_rows(6), r = world.rank();
      ASSERT_EQ(rows, cut ? 2 : 6);
      ASSERT_EQ(axis.all_rows(rows), 6);
      std::vector<float> x(size_t(rows), 0.f), y(6, 0.f), memory(1024, 0.f), sums(size_t(rows), 0.f);
      const int64_t first = cut ? r * rows : 0;
      for (int64_t i = 0; i < rows; ++i) x[size_t(i)] = float(1 + first + i);
      for (int64_t i = 0; i < 6; ++i) y[size_t(i)] = float((r + 1) * (i + 2));
      Arena scratch(Tensor(memory.data(), DType::uint8, {4096}));
      Stream stream;
      const Tensor local(x.data(), DType::fp32, {rows, 1}), all = axis.all_rows_of(local, scratch);
      axis.gather(all, local, stream, "x");
      for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(all.as<float>()[i], float(1 + i));
      const Tensor partial(y.data(), DType::fp32, {6, 1});
      axis.sum(cut ? Tensor(sums.data(), DType::fp32, {rows, 1}) : partial, partial, stream, "y");
      for (int64_t i = 0; i < rows; ++i)
        EXPECT_EQ(cut ? sums[size_t(i)] : y[size_t(i)], float(6 * (first + i + 2)));
    });
}

// Pieces cover every row once, and result and sent bytes equal those of the whole.
TEST(TensorAxis, MovesTheSameValuesInPiecesAsWhole) {
  for (bool cut : {false, true})
    for (int64_t least : {0, 1, 2, 3, 7})
      comm::run_ranks(3, [=](comm::Communicator& world) {
        constexpr int64_t kRows = 21, kWidth = 2;
        Stream compute(Stream::Mode::worker), beside(Stream::Mode::worker);
        const TensorAxis axis(world, cut, {&beside, least});
        const int64_t rows = axis.local_rows(kRows), first = cut ? world.rank() * rows : 0;
        std::vector<float> local(size_t(rows * kWidth)), all(size_t(kRows * kWidth)), used(all), sum(local);
        for (size_t i = 0; i < local.size(); ++i) local[i] = float(1 + first * kWidth + int64_t(i));
        const Tensor mine(local.data(), DType::fp32, {rows, kWidth});
        const Tensor whole(cut ? all.data() : local.data(), DType::fp32, {kRows, kWidth});
        for (const auto order : {TensorAxis::Order::rank, TensorAxis::Order::piece}) {
          std::fill(used.begin(), used.end(), 0.f);
          for (const auto& [r, x, here] : axis.start_gathers(whole, mine, order, compute, "x")) {
            ASSERT_EQ(x.dim(0), r.size());
            compute.wait(here);
            compute.enqueue([x = x, to = used.data() + r.begin * kWidth] {
              for (int64_t i = 0; i < x.numel(); ++i) to[i] += x.as<float>()[i];
            });
          }
          compute.synchronize();
          for (size_t i = 0; i < used.size(); ++i) ASSERT_EQ(used[i], float(1 + i)) << "row " << i / kWidth;
          for (size_t i = 0; order == TensorAxis::Order::rank && i < used.size(); ++i)
            ASSERT_EQ(whole.as<float>()[i], float(1 + i));
        }

        std::vector<float> partial(size_t(kRows * kWidth), 0.f);
        const Tensor terms(partial.data(), DType::fp32, {kRows, kWidth});
        const Tensor result = cut ? Tensor(sum.data(), DType::fp32, {rows, kWidth}) : terms;
        int calls = 0;
        Event summed;
        for (const TensorAxis::Summand& piece : axis.summands(rows)) {
          for (const auto& [r, t] : piece.products) {
            ++calls;
            ASSERT_EQ(r.size(), t.size());
            compute.enqueue([=, r = r, at = partial.data() + t.begin * kWidth, me = world.rank()] {
              for (int64_t i = 0; i < r.size() * kWidth; ++i)
                at[i] += float((me + 1) * (r.begin * kWidth + i + 1));
            });
          }
          summed = axis.start_sum(result, terms, piece.rows, compute, "y");
        }
        compute.wait(summed);
        compute.synchronize();
        for (int64_t i = 0; i < rows * kWidth; ++i)
          ASSERT_EQ(result.as<float>()[i], float(6 * (first * kWidth + i + 1))) << "row " << i / kWidth;
        const int64_t pieces = least == 0 ? 1 : std::min<int64_t>(4, rows / least);
        EXPECT_EQ(calls, pieces < 2 ? 1 : pieces * (cut ? 3 : 1)) << least;
        const int64_t shard = kRows / 3 * kWidth * 4;
        EXPECT_EQ(world.bytes()[comm::Collective::reduce_scatter], cut ? 2 * shard : 0);
        EXPECT_EQ(world.bytes()[comm::Collective::all_gather], cut ? 2 * 2 * shard : 0) << "in both orders";
      });
}

TEST(TensorAxis, NamesTheSizesThatWouldWork) {
  comm::run_ranks(2, [](comm::Communicator& world) {
    const TensorAxis axis(world);
    EXPECT_EQ(axis.mine(6, "heads"), (Range{0, 3}.shifted(3 * world.rank())));
    expect_error(Exit::usage, {"15 heads", "2 ranks (expected", "1, 3, 5, 15"},
                 [&] { axis.mine(15, "heads"); });
    expect_error(Exit::usage, {"7 rows", "sequence_parallel"}, [&] { axis.local_rows(7); });
  });
}

// Every token is on one rank, and a rank's part consists of whole tiles for large vocabularies.
TEST(TensorAxis, PadsVocabulariesByTheirSizeOnly) {
  for (int64_t count : {1, 11, 256, 4095, 4096, 4097, 5000, 50257, 151936})
    for (int ranks : {1, 2, 3, 8, 12})
      comm::run_ranks(ranks, [=](comm::Communicator& world) {
        const TensorAxis axis(world);
        const TensorAxis::Padded part = axis.padded_part(count);
        EXPECT_EQ(part.size % (count < 4096 ? 1 : 128), 0);
        const int64_t least = (count + ranks - 1) / ranks;
        EXPECT_GE(part.size, least);
        EXPECT_LT(part.size, least + (count < 4096 ? 1 : 128)) << count << " over " << ranks;
        EXPECT_EQ(part.real.begin, std::min(count, world.rank() * part.size));
        EXPECT_EQ(part.real.end, std::min(count, (world.rank() + 1) * part.size));
        const ParamSpec cut = axis.cut_padded({"w", {count, 3}, {}, true}, 0);
        EXPECT_EQ(cut.shape, (std::vector<int64_t>{part.size, 3}));
        EXPECT_EQ(cut.whole_shape(), (std::vector<int64_t>{count, 3}));
        EXPECT_EQ(cut.whole_numel(), 3 * count);
        EXPECT_EQ(!cut.cut_by().empty(), ranks > 1 || part.size != count) << "only cut parameters have parts";
      });
  EXPECT_EQ(TensorAxis().padded_part(50257).size, 50304);
  EXPECT_EQ(TensorAxis().padded_part(151936).size, 151936);
  EXPECT_EQ(TensorAxis().padded_part(257).size, 257);
}

TEST(TensorAxis, CutsOnlyDivisibleCountsInEqualParts) {
  comm::run_ranks(2, [](comm::Communicator& world) {
    const TensorAxis axis(world);
    EXPECT_EQ(axis.cut({"w", {6, 3}, {}, true}, 0).shape, (std::vector<int64_t>{3, 3}));
    EXPECT_THROW(axis.cut({"w", {7, 3}, {}, true}, 0), Error);
  });
}

TEST(TensorAxis, SendsNothingInADryRun) {
  comm::run_ranks(2, [](comm::Communicator& world) {
    const TensorAxis axis(world);
    Arena dry;
    Stream stream(Stream::Mode::discard);
    const Tensor local(nullptr, DType::fp32, {4, 8}), all = axis.all_rows_of(local, dry);
    axis.gather(all, local, stream, "x");
    axis.sum(local, all, stream, "x");
    EXPECT_EQ(dry.peak_bytes(), 8 * 8 * 4);
    EXPECT_EQ(world.bytes(), comm::CommBytes{});
  });
}

}  // namespace
}  // namespace cleave::tensor_parallel
