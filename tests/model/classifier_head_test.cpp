// The head over a tensor axis against the head of one rank.
#include "model/classifier_head.h"

#include <gtest/gtest.h>

#include <random>

namespace cleave {
namespace {

constexpr int64_t kRows = 12, kWidth = 8, kClasses = 11;

struct Outcome {
  std::vector<float> losses, dx, dweight, dbias;
};

std::vector<float> numbers(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(size_t(count), 0.f);
  for (float& x : out) x = normal(engine);
  return out;
}

// Runs the head on rows and classes of this rank; gradients come back as they lie in the whole tensors.
Outcome run_head(const TensorAxis& axis, int64_t chunk_bytes) {
  const ClassifierHead head({.unit = "head",
                             .weight = "weight",
                             .bias = "bias",
                             .classes = kClasses,
                             .width = kWidth,
                             .chunk_bytes = chunk_bytes,
                             .axis = axis});
  const TensorAxis::Padded part = axis.padded_part(kClasses);
  const int64_t rows = axis.local_rows(kRows), first = axis.cuts_rows() ? axis.rank() * rows : 0;
  std::vector<float> x = numbers(kRows * kWidth, 1), w = numbers(kClasses * kWidth, 2),
                     b = numbers(kClasses, 3);
  std::vector<float> local_w(size_t(part.size * kWidth), 0.f), local_b(size_t(part.size), 0.f);
  std::copy_n(w.begin() + part.real.begin * kWidth, part.real.size() * kWidth, local_w.begin());
  std::copy_n(b.begin() + part.real.begin, part.real.size(), local_b.begin());
  std::vector<float> dw(local_w.size(), 9.f), db(local_b.size(), 9.f), dx(size_t(rows * kWidth), 9.f);
  std::vector<int32_t> targets{0, 10, 3, -100, 5, 6, 7, 8, 9, 1, 2, 4};
  Outcome out{std::vector<float>(size_t(kRows), 0.f), {}, {}, {}};
  std::vector<std::byte> memory(1 << 20);
  Arena scratch(Tensor(memory.data(), DType::uint8, {1 << 20}));
  Stream stream;
  const auto f32 = [](auto& v, Shape shape) { return Tensor(v.data(), DType::fp32, shape); };
  bool written[2] = {false, false};
  ParamGradient grads[2] = {{f32(dw, {part.size, kWidth}), &written[0]}, {f32(db, {part.size}), &written[1]}};
  const Tensor params[2] = {f32(local_w, {part.size, kWidth}), f32(local_b, {part.size})};
  head.run({.losses = f32(out.losses, {kRows}),
            .dx = f32(dx, {rows, kWidth}),
            .x = Tensor(x.data() + first * kWidth, DType::fp32, {rows, kWidth}),
            .targets = Tensor(targets.data(), DType::int32, {kRows}),
            .params = params,
            .grads = grads,
            .scale = 0.5f,
            .scratch = scratch,
            .stream = stream});
  out.dx.assign(size_t(kRows * kWidth), 0.f);
  std::copy(dx.begin(), dx.end(), out.dx.begin() + first * kWidth);
  out.dweight.assign(w.size(), 0.f), out.dbias.assign(b.size(), 0.f);
  std::copy_n(dw.begin(), part.real.size() * kWidth, out.dweight.begin() + part.real.begin * kWidth);
  std::copy_n(db.begin(), part.real.size(), out.dbias.begin() + part.real.begin);
  return out;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-6) << what << " " << i;
}

TEST(ClassifierHead, OverATensorAxisGivesWhatOneRankGives) {
  const Outcome want = run_head(TensorAxis(), 1 << 20);
  for (int ranks : {2, 3, 4})
    for (bool cut_rows : {false, true})
      for (int64_t chunk_bytes : {1 << 20, 3 * 4 * 4})
        run_ranks(ranks, [&](Communicator& world) {
          const TensorAxis axis(world, cut_rows);
          Outcome got = run_head(axis, chunk_bytes);
          expect_close(got.losses, want.losses, "losses");
          Stream stream;
          // Each rank holds its classes' gradients, and its rows of dx when rows are cut.
          for (auto* v : {&got.dweight, &got.dbias})
            world.all_reduce(Tensor(v->data(), DType::fp32, {int64_t(v->size())}), stream);
          if (cut_rows)
            world.all_reduce(Tensor(got.dx.data(), DType::fp32, {int64_t(got.dx.size())}), stream);
          expect_close(got.dx, want.dx, "dx");
          expect_close(got.dweight, want.dweight, "dweight");
          expect_close(got.dbias, want.dbias, "dbias");
        });
}

TEST(ClassifierHead, NamesWholeParametersWhateverTheAxis) {
  run_ranks(3, [](Communicator& world) {
    const TensorAxis axis(world);
    const ClassifierHead head(
        {.unit = "u", .weight = "w", .bias = "b", .classes = 11, .width = 8, .axis = axis});
    const UnitSpec unit = head.units()[0];
    EXPECT_EQ(unit.params[0].shape, (std::vector<int64_t>{4, 8}));
    EXPECT_EQ(unit.params[0].whole_shape(), (std::vector<int64_t>{11, 8}));
    EXPECT_EQ(unit.params[0].split.rank, world.rank());
    EXPECT_EQ(unit.params[1].whole_shape(), (std::vector<int64_t>{11}));
  });
}

}  // namespace
}  // namespace cleave
