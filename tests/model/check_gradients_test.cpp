#include "model/check_gradients.h"

#include <gtest/gtest.h>

namespace cleave::model {
namespace {

// y = x * gain, column by column, with at most one mistake.
class Gain final : public Layer {
 public:
  enum class Mistake { none, gain_gradient, input_gradient, forgets_what_was_there, split };
  explicit Gain(Mistake mistake) : mistake_(mistake) {}
  std::vector<UnitSpec> units() const override {
    return {{"gain", {{"gain.weight", {3}, {Init::Kind::ones}, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return in; }
  void forward(const ForwardArgs& a) const override {
    a.stream.enqueue([y = a.y, x = a.x, gain = a.params[0]] {
      for (int64_t i = 0; i < y.numel(); ++i) y.as<float>()[i] = x.as<float>()[i] * gain.as<float>()[i % 3];
    });
  }
  bool splits_backward() const override { return mistake_ == Mistake::split; }
  void backward(const BackwardArgs& a) const override {
    if (a.part != BackwardPart::weight)
      a.stream.enqueue(
          [dx = a.dx, dy = a.dy, gain = a.params[0], wrong = mistake_ == Mistake::input_gradient] {
            for (int64_t i = 0; i < dx.numel(); ++i)
              dx.as<float>()[i] = dy.as<float>()[i] * (wrong ? 1 : gain.as<float>()[i % 3]);
          });
    if (a.part == BackwardPart::input) return;
    const bool add = a.grads[0].accumulate() && mistake_ != Mistake::forgets_what_was_there;
    const float factor = mistake_ == Mistake::gain_gradient                             ? 0.5f
                         : mistake_ == Mistake::split && a.part == BackwardPart::weight ? 2.0f
                                                                                        : 1.0f;
    a.stream.enqueue([dy = a.dy, x = a.x, dgain = a.grads[0].tensor, add, factor] {
      for (int64_t c = 0; c < 3 && !add; ++c) dgain.as<float>()[c] = 0;
      for (int64_t i = 0; i < x.numel(); ++i)
        dgain.as<float>()[i % 3] += factor * dy.as<float>()[i] * x.as<float>()[i];
    });
  }

 private:
  Mistake mistake_;
};

std::string said_of(Gain::Mistake mistake) {
  try {
    check_gradients(Gain(mistake), {DType::fp32, {4, 3}});
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::internal);
    return e.what();
  }
  return "";
}

TEST(CheckGradients, AcceptsCorrectLayersAndNamesEachKindOfMistake) {
  using Mistake = Gain::Mistake;
  EXPECT_EQ(said_of(Mistake::none), "");
  EXPECT_EQ(said_of(Mistake::gain_gradient)
                .rfind("the gradient of gain.weight, element 0, by finite differences", 0),
            0u);
  EXPECT_EQ(said_of(Mistake::input_gradient).rfind("the gradient of the input, element 0, by finite", 0), 0u);
  EXPECT_NE(
      said_of(Mistake::forgets_what_was_there).find("a second micro-batch's gradient of gain.weight added"),
      std::string::npos);
  EXPECT_NE(said_of(Mistake::split).find("the gradient of gain.weight in a split backward"),
            std::string::npos);
}

}  // namespace
}  // namespace cleave::model
