#include "kernels/embedding.h"

#include "tests/kernels/guarded.h"
#include "tests/scratch.h"

namespace cleave::kernels {
namespace {

KERNEL_SUITE(Embedding);

struct Table {
  int64_t rows, width, seq, vocab, positions;
};
constexpr Table kTables[] = {{12, 20, 4, 7, 6}, {1, 1, 1, 1, 1},         {130, 33, 65, 11, 65},
                             {5, 16, 8, 3, 9},  {1025, 40, 205, 3, 205}, {300, 136, 300, 1, 300},
                             {0, 4, 2, 3, 2}};

Guarded tokens_of(const Table& c) {
  Guarded tokens(DType::int32, {c.rows});
  for (int64_t i = 0; i < c.rows; ++i) tokens.put(size_t(i), double((i * i + 3 * i) % c.vocab));
  return tokens;
}

TEST_P(EmbeddingKernel, ForwardAddsTokenAndPositionRows) {
  for (DType type : kTrainingTypes)
    for (const Table& c : kTables)
      for (bool placed : {false, true}) {
        const Guarded tokens = tokens_of(c);
        Guarded wte(type, {c.vocab, c.width}, random_values(c.vocab * c.width, 1));
        Guarded wpe(type, {c.positions + 1, c.width}, random_values((c.positions + 1) * c.width, 2));
        Guarded y(type, {c.rows, c.width});
        Values want;
        for (int64_t i = 0; i < c.rows * c.width; ++i) {
          const int64_t row = i / c.width, column = i % c.width;
          want.push_back(wte.at(size_t(int64_t(tokens.at(size_t(row))) * c.width + column)) +
                         (placed ? wpe.at(size_t((1 + row % c.seq) * c.width + column)) : 0));
        }
        TestStream stream;
        launch(EmbeddingForward{.y = y,
                                .tokens = tokens,
                                .wte = wte,
                                .wpe = placed ? wpe.tensor() : Tensor(),
                                .seq = c.seq,
                                .first_position = placed ? 1 : 0},
               stream);
        expect_near(y, want, half_ulp(type) * 1.01, 0, "y");
      }
}

TEST_P(EmbeddingKernel, BackwardAddsEveryRowToItsTokenAndPosition) {
  for (DType type : kTrainingTypes)
    for (DType sums : kTrainingTypes)
      for (const Table& c : kTables)
        for (bool accumulate : {false, true}) {
          const Guarded tokens = tokens_of(c);
          Guarded dy(type, {c.rows, c.width}, random_values(c.rows * c.width, 1));
          Guarded dwte(sums, {c.vocab, c.width}, random_values(c.vocab * c.width, 2));
          Guarded dwpe(sums, {c.positions, c.width}, random_values(c.positions * c.width, 3));
          Values t = accumulate ? dwte.values() : Values(size_t(dwte.numel()), 0.0);
          Values p = accumulate ? dwpe.values() : Values(size_t(dwpe.numel()), 0.0);
          for (int64_t i = 0; i < c.rows * c.width; ++i) {
            const int64_t row = i / c.width, column = i % c.width;
            t[size_t(int64_t(tokens.at(size_t(row))) * c.width + column)] += dy.at(size_t(i));
            p[size_t(row % c.seq * c.width + column)] += dy.at(size_t(i));
          }
          TestStream stream;
          launch(EmbeddingBackward{.dwte = dwte,
                                   .dwpe = dwpe,
                                   .dy = dy,
                                   .tokens = tokens,
                                   .seq = c.seq,
                                   .accumulate_wte = accumulate,
                                   .accumulate_wpe = accumulate},
                 stream);
          const double adding = 5e-6 + 1e-7 * double(c.rows);  // roundings of fp32 sums of this many values
          expect_near(dwte, t, half_ulp(sums) * 1.01, adding, "dwte");
          expect_near(dwpe, p, half_ulp(sums) * 1.01, adding, "dwpe");
        }
}

TEST_P(EmbeddingKernel, UsesGivenPositions) {
  for (DType type : kTrainingTypes) {
    Guarded tokens(DType::int32, {5}, {1, 0, 2, 2, 1}), positions(DType::int32, {5}, {3, 0, 1, 3, 2});
    Guarded wte(type, {3, 20}, random_values(60, 1)), wpe(type, {4, 20}, random_values(80, 2));
    Guarded y(type, {5, 20});
    Values want;
    for (size_t i = 0; i < 100; ++i)
      want.push_back(wte.at(size_t(tokens.at(i / 20)) * 20 + i % 20) +
                     wpe.at(size_t(positions.at(i / 20)) * 20 + i % 20));
    TestStream stream;
    launch(
        EmbeddingForward{.y = y, .tokens = tokens, .wte = wte, .wpe = wpe, .positions = positions, .seq = 5},
        stream);
    expect_near(y, want, half_ulp(type) * 1.01, 0, "y");
  }
}

// Two sequences of 6 places, and the rows of a rank with places 2 to 4 of each.
TEST_P(EmbeddingKernel, DocumentPositionsCountFromTheBeginningOfEachDocument) {
  Guarded documents(DType::int32, {2, 6}, {0, 1, 1, 1, 4, 4, 0, 0, 0, 3, 3, 5});
  Guarded all(DType::int32, {2, 6}), part(DType::int32, {2, 3}), none(DType::int32, {0, 3}),
      no_documents(DType::int32, {0, 6});
  TestStream stream;
  launch(DocumentPositions{.positions = all, .documents = documents}, stream);
  launch(DocumentPositions{.positions = part, .documents = documents, .first = 2}, stream);
  launch(DocumentPositions{.positions = none, .documents = no_documents, .first = 2}, stream);
  expect_near(all, {0, 0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 0}, 0, 0, "all");
  expect_near(part, {1, 2, 0, 2, 0, 1}, 0, 0, "part");
}

TEST_P(EmbeddingKernel, NamesATokenOutsideTheVocabulary) {
  for (double bad : {-1.0, 7.0}) {
    Guarded tokens(DType::int32, {3}, {0, bad, 6}), wte(DType::fp32, {7, 4}), y(DType::fp32, {3, 4});
    TestStream stream;
    expect_error(Exit::data, {"position 1"},
                 [&] { launch(EmbeddingForward{.y = y, .tokens = tokens, .wte = wte, .wpe = {}}, stream); });
  }
}

}  // namespace
}  // namespace cleave::kernels
