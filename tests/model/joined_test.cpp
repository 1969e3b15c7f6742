#include "model/joined.h"

#include <gtest/gtest.h>

#include <array>

namespace cleave::model {
namespace {

class Joined : public ::testing::Test {
 protected:
  Tensor at(int64_t begin, Shape shape) { return {data_.data() + begin, DType::fp32, shape}; }
  std::array<float, 64> data_{};
};

TEST_F(Joined, NeighboursAreOneMatrixOfAllTheirRows) {
  const std::vector<Tensor> parts{at(4, {3, 5}), at(19, {1, 5}), at(24, {2, 5})};
  const Tensor all = joined(std::span<const Tensor>(parts));
  EXPECT_EQ(all.shape(), (Shape{6, 5}));
  EXPECT_EQ(all.raw(), data_.data() + 4);
  const std::vector<Tensor> biases{at(0, {3}), at(3, {2})};
  EXPECT_EQ(joined(std::span<const Tensor>(biases)).shape(), (Shape{5}));
}

TEST_F(Joined, RefusesGapsAndOtherWidths) {
  for (const Tensor& second : {at(16, {1, 5}), at(14, {1, 5}), at(15, {1, 4}), at(15, {5})}) {
    const std::vector<Tensor> parts{at(0, {3, 5}), second};
    EXPECT_THROW(joined(std::span<const Tensor>(parts)), Error);
  }
}

TEST_F(Joined, TensorsOfADryRunJoinWithoutMemory) {
  const std::vector<Tensor> parts{Tensor(nullptr, DType::bf16, {3, 5}), Tensor(nullptr, DType::bf16, {1, 5})};
  EXPECT_EQ(joined(std::span<const Tensor>(parts)).shape(), (Shape{4, 5}));
}

TEST_F(Joined, AGradientMarksEveryPartAsWritten) {
  bool written[3] = {};
  std::vector<ParamGradient> parts{
      {at(0, {1, 4}), written}, {at(4, {2, 4}), written + 1}, {at(12, {1, 4}), written + 2}};
  ParamGradient all = joined(std::span<ParamGradient>(parts));
  EXPECT_EQ(all.tensor.shape(), (Shape{4, 4}));
  EXPECT_FALSE(all.accumulate()) << "the first write overwrites";
  for (bool w : written) EXPECT_TRUE(w);
  EXPECT_TRUE(joined(std::span<ParamGradient>(parts)).accumulate()) << "the second adds";
}

}  // namespace
}  // namespace cleave::model
