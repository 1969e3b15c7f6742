// Hits of a head with its bias as logits: ties lie on one rank of a tensor axis and on several, and padding
// has the largest value.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/classifier_head.h"

namespace cleave::model {
namespace {

constexpr int64_t kRows = 24, kColumns = 4;

// Returns the hits for every target from 0 on, as reported by this rank.
std::vector<double> hits_of(const tensor_parallel::TensorAxis& axis, const std::vector<float>& logits) {
  const ClassifierHead head({.unit = "head",
                             .weight = "weight",
                             .bias = "bias",
                             .classes = int64_t(logits.size()),
                             .width = kColumns,
                             .axis = axis});
  const tensor_parallel::TensorAxis::Padded part = axis.padded_part(int64_t(logits.size()));
  std::vector<float> x(size_t(kRows * kColumns), 1), w(size_t(part.size * kColumns), 0), b(size_t(part.size), 9),
      losses(size_t(kRows), 0), hits(size_t(kRows), 7);
  std::copy(logits.begin() + part.real.begin, logits.begin() + part.real.end, b.begin());
  std::vector<int32_t> targets(size_t(kRows), kIgnoredTarget);
  for (size_t i = 0; i < logits.size(); ++i) targets[i] = int32_t(i);
  const auto tensor = [](auto& values, DType type, Shape shape) {
    return Tensor(values.data(), type, shape);
  };
  const Tensor params[2] = {tensor(w, DType::fp32, {part.size, kColumns}), tensor(b, DType::fp32, {part.size})};
  std::vector<std::byte> memory(size_t{1} << 20);
  Arena scratch(Tensor(memory.data(), DType::uint8, {int64_t(memory.size())}));
  Stream stream;
  head.run({.losses = tensor(losses, DType::fp32, {kRows}),
            .dx = {},
            .x = tensor(x, DType::fp32, {axis.local_rows(kRows), kColumns}),
            .targets = tensor(targets, DType::int32, {kRows}),
            .params = params,
            .grads = {},
            .scratch = scratch,
            .stream = stream,
            .logits = {.rows = 5},
            .hits = tensor(hits, DType::fp32, {kRows})});
  return {hits.begin(), hits.end()};
}

TEST(ClassifierHead, CountsTheFirstOfEqualLogitsOnTheRankThatHasIt) {
  std::mt19937 random(5);
  for (const int ranks : {1, 2, 3, 4})
    for (int draw = 0; draw < 20; ++draw) {
      std::vector<float> logits(11);
      for (float& z : logits) z = float(random() % 3);
      const auto first = size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
      comm::run_ranks(ranks, [&](comm::Communicator& world) {
        const tensor_parallel::TensorAxis axis(world);
        const Range mine = axis.padded_part(int64_t(logits.size())).real;
        std::vector<double> want(size_t(kRows), 0);
        if (mine.begin <= int64_t(first) && int64_t(first) < mine.end) want[first] = 1;
        EXPECT_EQ(hits_of(axis, logits), want) << ranks << " ranks, rank " << world.rank();
      });
    }
}

}  // namespace
}  // namespace cleave::model
