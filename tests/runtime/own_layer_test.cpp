// Errors of the engine for custom layers and models.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/small_models.h"
#include "tests/scratch.h"

namespace cleave::testing {
namespace {

// y = 2 x in plain host code: immediately, or as a task of the stream.
class Doubles final : public model::Layer {
 public:
  explicit Doubles(bool at_once) : at_once_(at_once) {}
  std::vector<UnitSpec> units() const override { return {}; }
  model::TensorSpec output(const model::TensorSpec& in) const override { return in; }
  void forward(const model::ForwardArgs& a) const override { twice(a.y, a.x, a.stream); }
  void backward(const model::BackwardArgs& a) const override {
    if (a.dx.defined()) twice(a.dx, a.dy, a.stream);
  }

 private:
  void twice(Tensor y, Tensor x, Stream& stream) const {
    const auto work = [=] {
      for (int64_t i = 0; i < x.numel(); ++i) y.as<float>()[i] = 2 * x.as<float>()[i];
    };
    if (at_once_)
      work();
    else
      stream.enqueue(work);
  }
  bool at_once_;
};

model::Model with_own_layer(bool at_once) {
  model::Model m = small_gpt();
  m.layers.insert(m.layers.begin() + 1, std::make_unique<Doubles>(at_once));
  return m;
}

std::string refusal(const config::DsConfig& c, model::Model model, Exit code) {
  const auto alone = comm::self_communicator();
  return error_text(code, [&] { runtime::Engine(c, std::move(model), *alone, {}); });
}

TEST(OwnLayer, ThatTouchesElementsInADryPassGetsAnErrorWithTheAlternative) {
  const std::string said = refusal(config_for(1), with_own_layer(true), Exit::internal);
  EXPECT_NE(said.find("this is a dry pass"), std::string::npos) << said;
  EXPECT_NE(said.find("Stream::enqueue"), std::string::npos) << said;
}

// Declares that it halves the columns, but does not.
class Halves final : public model::Layer {
 public:
  std::vector<UnitSpec> units() const override { return {{"halves", {{"halves.weight", {1}, {}, false}}}}; }
  model::TensorSpec output(const model::TensorSpec& in) const override {
    return {in.dtype, {in.shape[0], in.shape[1] / 2}};
  }
  void forward(const model::ForwardArgs& a) const override {
    kernels::launch(kernels::Cast{.y = a.y, .x = a.x.view(a.y.shape())}, a.stream);
  }
  void backward(const model::BackwardArgs&) const override {}
};

TEST(OwnLayer, ErrorsNameTheLayerAndItsInputsWithoutLocalPaths) {
  model::Model model = model::make_mlp({{4, 8, 3}}, DType::fp32, "small");
  model.layers.insert(model.layers.begin(), std::make_unique<Halves>());
  const std::string said = refusal(config_for(1, 2), std::move(model), Exit::internal);
  EXPECT_EQ(said.rfind("the forward of small, layer \"halves\" with input fp32 [2, 4], with output fp32 [2, "
                       "2]: view of 8 elements as 4 [device/tensor.h:",
                       0),
            0u)
      << said;
}

TEST(OwnModel, RejectsABatchOfAnotherSizeAndNamesTheExpectedOne) {
  const auto alone = comm::self_communicator();
  runtime::Engine engine(config_for(1, 2), model::make_mlp({{4, 8, 3}}, DType::fp32, "small"), *alone, {});
  const std::vector<float> x(12);
  const std::vector<int32_t> y(3);
  try {
    engine.train_batch([&](int) { return batch_of(x, y); });
    ADD_FAILURE() << "a batch of three samples was taken for two";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::data);
    EXPECT_EQ(std::string(e.what()),
              "batch: wrong size (got 12 input elements and 3 targets; a micro-batch of 2 samples of small "
              "has 8 and 2)");
  }
}

TEST(OwnLayer, ThatTouchesElementsInTasksOfTheStreamIsTrained) {
  const config::DsConfig c = config_for(1);
  const auto alone = comm::self_communicator();
  runtime::Engine engine(c, with_own_layer(false), *alone, {});
  Tokens tokens(1);
  const double first = engine.train_batch(source(tokens, c, 0, 0, 1)).loss;
  EXPECT_NEAR(first, std::log(double(kVocab)), 0.2) << "the loss of even odds, before anything is learnt";
}

// dL/dx of an MLP with input scaled by a gain g: dL/dg = sum of x dL/dx. Compared with finite differences of
// the loss.
class Gain final : public model::Layer {
 public:
  std::vector<UnitSpec> units() const override {
    return {{"gain", {{"gain.weight", {1}, {Init::Kind::ones}, false}}}};
  }
  model::TensorSpec output(const model::TensorSpec& in) const override { return in; }
  void forward(const model::ForwardArgs& a) const override {
    a.stream.enqueue([y = a.y, x = a.x, g = a.params[0]] {
      for (int64_t i = 0; i < x.numel(); ++i) y.as<float>()[i] = g.as<float>()[0] * x.as<float>()[i];
    });
  }
  void backward(const model::BackwardArgs& a) const override {
    a.stream.enqueue([dy = a.dy, x = a.x, dg = a.grads[0].tensor, add = a.grads[0].accumulate()] {
      float sum = add ? dg.as<float>()[0] : 0;
      for (int64_t i = 0; i < x.numel(); ++i) sum += dy.as<float>()[i] * x.as<float>()[i];
      dg.as<float>()[0] = sum;
    });
  }
};

TEST(OwnLayer, BeforeAnMlpIsGivenTheGradientOfItsOutput) {
  config::DsConfig c = config_for(1, 4);
  c.optimizer.type = config::OptimizerType::sgd, c.optimizer.lr = 1, c.optimizer.weight_decay = 0,
  c.gradient_clipping = 0;
  const auto alone = comm::self_communicator();
  model::Model model = model::make_mlp({{3, 8, 4}}, DType::fp32);
  model.layers.insert(model.layers.begin(), std::make_unique<Gain>());
  runtime::Engine engine(c, std::move(model), *alone, {});
  std::vector<float> points = {0.5f, -1, 2, 1, 0.25f, -0.5f, -2, 1, 1, 0.1f, 3, -1};
  std::vector<int32_t> classes = {0, 3, 1, 2};
  const BatchSource batch = [&](int) {
    return Batch{.input = Tensor(points.data(), DType::fp32, {4, 3}, MemoryKind::host),
                 .targets = Tensor(classes.data(), DType::int32, {4}, MemoryKind::host),
                 .valid_targets = 4};
  };
  const auto loss_at = [&](float gain) {
    engine.set_parameters([&](const ParamSpec& p) {
      return p.name == "gain.weight" ? std::vector<float>{gain} : engine.parameter(p.name);
    });
    return engine.evaluate(batch, 1).loss;
  };
  const float h = 0x1p-6f;
  const double slope = (loss_at(1 + h) - loss_at(1 - h)) / (2 * h);
  loss_at(1);
  engine.train_batch(batch);
  EXPECT_NEAR(1 - engine.parameter("gain.weight")[0], slope, 1e-3 * std::abs(slope) + 1e-4);
  EXPECT_GT(std::abs(slope), 0.01);
}

// A head with its input as logits: three of five labels are the first of the largest, and one row has none.
TEST(OwnModel, HasTheAccuracyOfItsLabels) {
  config::DsConfig c = config_for(1, 3, 2);
  const auto alone = comm::self_communicator();
  runtime::Engine engine(c, model::make_mlp({{3, 3}}, DType::fp32), *alone, {});
  engine.set_parameters([](const ParamSpec& p) {
    return p.name == "head.weight" ? std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1}
                                   : std::vector<float>(3, 0.0f);
  });
  const std::vector<float> x[] = {{3, 1, 2, 2, 2, 1, 2, 2, 1}, {-1, -3, -2, 0, 0, 0, 5, 6, 7}};
  const std::vector<int32_t> y[] = {{0, 0, 1}, {2, 0, kIgnoredTarget}};
  const runtime::Evaluation e = engine.evaluate([&](int micro) { return batch_of(x[micro], y[micro]); }, 2);
  EXPECT_EQ(e.targets, 5);
  EXPECT_EQ(e.hits, 3);
  EXPECT_EQ(e.accuracy(), 0.6);
}

TEST(OwnModel, MadeInAnotherTypeThanTheConfigurationsIsRefused) {
  config::DsConfig c = config_for(1);
  c.precision = config::Precision::bf16;
  const std::string said = refusal(c, small_gpt(DType::fp32), Exit::usage);
  EXPECT_NE(said.find("small was made in fp32, but the configuration trains in bf16"), std::string::npos)
      << said;
  c.precision = config::Precision::fp32;
  EXPECT_NE(refusal(c, small_gpt(DType::fp16), Exit::usage).find("model_dtype(config)"), std::string::npos);
}

}  // namespace
}  // namespace cleave::testing
