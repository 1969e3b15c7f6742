#include "model/mlp.h"

#include <cmath>

#include "model/classifier_head.h"
#include "model/linear.h"

namespace cleave {
namespace {

// y = activation(x @ weight^T + bias)
class Dense final : public Layer {
 public:
  Dense(int64_t in, int64_t out, Activation kind, std::string name)
      : in_(in), out_(out), kind_(kind), name_(std::move(name)) {}

  std::vector<UnitSpec> units() const override {
    const Init init{Init::Kind::uniform, std::sqrt(6.0f / float(in_))};  // He et al., for rectifiers
    return {{name_, {{name_ + ".weight", {out_, in_}, init, true}, {name_ + ".bias", {out_}, {}, false}}}};
  }
  TensorSpec output(const TensorSpec& in) const override { return {in.dtype, {in.shape[0], out_}}; }
  void forward(const ForwardArgs& a) const override {
    const Tensor hidden = a.saved.keep(a.keep, a.y.dtype(), a.y.shape());
    Linear{in_, out_, a.params[0], a.params[1]}.forward_active(a.y, hidden, a.x, kind_, a.stream);
  }
  void backward(const BackwardArgs& a) const override {
    const Tensor dhidden = a.scratch.take(a.dy.dtype(), a.dy.shape());
    launch(ActivationBackward{.dx = dhidden, .dy = a.dy, .x = a.saved[0], .kind = kind_}, a.stream);
    auto g = a.grads;
    Linear{in_, out_, a.params[0], a.params[1]}.backward(a.dx, dhidden, a.x, g[0], &g[1], a.stream);
  }

 private:
  int64_t in_, out_;
  Activation kind_;
  std::string name_;
};

}  // namespace

Model make_mlp(const MlpConfig& c, DType dtype, std::string name) {
  require(c.sizes.size() >= 2, Exit::usage,
          "an MLP needs at least an input size and a number of classes, got {} sizes", c.sizes.size());
  Model m;
  m.name = std::move(name), m.dtype = dtype;
  double weights = 0;
  for (size_t i = 0; i + 2 < c.sizes.size(); ++i) {
    m.layers.push_back(
        std::make_unique<Dense>(c.sizes[i], c.sizes[i + 1], c.activation, fmt::format("dense.{}", i)));
    weights += double(c.sizes[i]) * double(c.sizes[i + 1]);
  }
  const int64_t width = c.sizes[c.sizes.size() - 2], classes = c.sizes.back();
  m.head =
      std::make_unique<ClassifierHead>(ClassifierHead::Config{.unit = "head",
                                                              .weight = "head.weight",
                                                              .bias = "head.bias",
                                                              .classes = classes,
                                                              .width = width,
                                                              .init_scale = 1.0f / std::sqrt(float(width))});
  weights += double(width) * double(classes);
  m.sample = {dtype, {1, c.sizes.front()}};
  m.flops_per_sample = 6.0 * weights;
  return m;
}

}  // namespace cleave
