#include "model/mlp.h"

#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "model/classifier_head.h"
#include "model/cut_linear.h"

namespace cleave::model {
namespace {

// y = activation(x @ weight^T + bias). Over a tensor axis layers form pairs as in a transformer's MLP: first
// cut outputs, then cut inputs, so rows travel once per pair. The model's first input has all rows and
// columns on every rank.
class DenseLayer final : public Layer {
 public:
  enum class Cut { outputs, inputs };
  DenseLayer(int64_t in, int64_t out, kernels::Activation kind, std::string name, Cut cut, bool first,
             const tensor_parallel::TensorAxis& axis)
      : in_(in), out_(out), kind_(kind), name_(std::move(name)), cut_(cut), first_(first), axis_(axis) {
    const std::string what = fmt::format("{} of {}", cut == Cut::outputs ? "outputs" : "inputs", name_);
    mine_ = axis_.mine(cut == Cut::outputs ? out : in, what.c_str());
    const Init init{Init::Kind::uniform, std::sqrt(6.0f / float(in_))};  // He et al., for rectifiers
    const ParamSpec bias{name_ + ".bias", {out_}, {}, false};
    weight_ =
        Parameter(axis_.cut({name_ + ".weight", {out_, in_}, init, true}, cut_ == Cut::outputs ? 0 : 1));
    bias_ = Parameter(cut_ == Cut::outputs ? axis_.cut(bias, 0) : bias);
    declared_ = {{name_, {&weight_, &bias_}}};
    units_ = settle(declared_);
  }

  std::vector<UnitSpec> units() const override { return units_; }
  void freeze(const config::FreezeRule& rule) override { units_ = settle(declared_, rule); }
  TensorSpec output(const TensorSpec& in) const override {
    const int64_t rows = in.shape[0];
    if (cut_ == Cut::inputs) return {in.dtype, {axis_.local_rows(rows), out_}};
    return {in.dtype, {first_ ? rows : axis_.all_rows(rows), mine_.size()}};
  }

  void forward(const ForwardArgs& a) const override {
    const Tensor hidden = a.keep.take(a.y.dtype(), a.y.shape());
    a.saved.put(this, Kept{hidden});
    const CutLinear cut{axis_, a.stream, name_};
    if (cut_ == Cut::outputs && !first_) {
      cut.forward_active(linear(a.params), a.y, hidden, a.x, kind_, a.scratch);
    } else if (cut_ == Cut::outputs || axis_.size() == 1) {
      linear(a.params).forward_active(a.y, hidden, a.x, kind_, a.stream);
    } else {
      cut.forward_summed(linear(a.params), hidden, axis_.all_rows_of(hidden, a.scratch),
                         columns(a.x, a.scratch, a.stream));
      kernels::launch(kernels::ActivationForward{.y = a.y, .x = hidden, .kind = kind_}, a.stream);
    }
  }

  void backward(const BackwardArgs& a) const override {
    const Tensor dhidden = a.scratch.take(a.dy.dtype(), a.dy.shape());
    kernels::launch(
        kernels::ActivationBackward{
            .dx = dhidden, .dy = a.dy, .x = a.saved.get<Kept>(this).hidden, .kind = kind_},
        a.stream);
    if (first_ && a.dx.defined()) {  // a program put its own layers before the MLP
      require(axis_.size() == 1, Exit::usage,
              "{} is the first layer of an MLP over {} tensor-parallel ranks, but other layers precede it; "
              "set tensor_parallel.autotp_size to 1",
              name_, axis_.size());
      linear(a.params).backward_input(a.dx, dhidden, a.stream);
    }
    cut_ == Cut::outputs ? backward_outputs(a, dhidden) : backward_inputs(a, dhidden);
  }

 private:
  struct Kept {
    Tensor hidden;  // input of the activation
  };
  Linear linear(std::span<const Tensor> params) const {
    const Tensor weight = weight_.in(params), bias = bias_.in(params);
    if (cut_ == Cut::outputs) return {in_, mine_.size(), weight, bias};
    return {mine_.size(), out_, weight, axis_.rank() == 0 ? bias : Tensor()};  // summed: once
  }
  // Returns this rank's columns of the model's input; other layers get only theirs.
  Tensor columns(Tensor x, Arena& scratch, Stream& stream) const {
    if (!first_ || axis_.size() == 1) return x;
    const Tensor mine = scratch.take(x.dtype(), {x.dim(0), mine_.size()});
    kernels::launch(kernels::CopyRuns{.y = mine,
                                      .x = x.slice({mine_.begin, x.numel()}),
                                      .width = mine_.size(),
                                      .outer = {1, 0, 0},
                                      .inner = {x.dim(0), mine_.size(), in_}},
                    stream);
    return mine;
  }
  void backward_outputs(const BackwardArgs& a, Tensor dhidden) const {
    const CutLinear cut{axis_, a.stream, name_};
    Event summed, gathered;
    Tensor all = a.x;
    if (!first_) {
      all = axis_.all_rows_of(a.x, a.scratch);
      gathered = axis_.start_gather(all, a.x, a.stream, name_);
      summed = cut.backward_summed(linear(a.params), a.dx, axis_.all_rows_of(a.dx, a.scratch), dhidden);
      a.stream.wait(gathered);
    }
    linear(a.params).backward_weight(dhidden, all, *weight_.in(a.grads), bias_.in(a.grads), a.stream);
    a.stream.wait(summed);
  }
  void backward_inputs(const BackwardArgs& a, Tensor dhidden) const {
    Tensor all = axis_.all_rows_of(dhidden, a.scratch);
    if (first_)
      axis_.gather(all, dhidden, a.stream, name_);
    else
      all = CutLinear{axis_, a.stream, name_}.backward_gathered(linear(a.params), a.dx, dhidden, a.scratch);
    linear(a.params).backward_weight({all, dhidden}, columns(a.x, a.scratch, a.stream), *weight_.in(a.grads),
                                     bias_.in(a.grads), a.stream);
  }

  int64_t in_, out_;
  kernels::Activation kind_;
  std::string name_;
  Cut cut_;
  bool first_;
  tensor_parallel::TensorAxis axis_;
  Range mine_;  // range of the cut dimension
  Parameter weight_, bias_;
  std::vector<DeclaredUnit> declared_;
  std::vector<UnitSpec> units_;
};

}  // namespace

Model make_mlp(const MlpConfig& c, DType dtype, std::string name, const Axes& axes) {
  require(c.sizes.size() >= 2, Exit::usage,
          "MLP: too few sizes (got {}, expected at least an input size and a number of classes)",
          c.sizes.size());
  Model m;
  m.name = std::move(name), m.dtype = dtype;
  const size_t dense = c.sizes.size() - 2;
  require(
      dense > 0 || axes.tensor.size() == 1, Exit::usage,
      "tensor_parallel.autotp_size: an MLP without hidden layers cannot be split over {} ranks; set it to 1",
      axes.tensor.size());
  for (size_t i = 0; i < dense; ++i) {
    // The last layer has cut inputs, so that the head sees whole columns.
    const auto cut = (dense - i) % 2 == 0 ? DenseLayer::Cut::outputs : DenseLayer::Cut::inputs;
    m.layers.push_back(std::make_unique<DenseLayer>(c.sizes[i], c.sizes[i + 1], c.activation,
                                                    fmt::format("dense.{}", i), cut, i == 0, axes.tensor));
  }
  const int64_t width = c.sizes[c.sizes.size() - 2], classes = c.sizes.back();
  m.head =
      std::make_unique<ClassifierHead>(ClassifierHead::Config{.unit = "head",
                                                              .weight = "head.weight",
                                                              .bias = "head.bias",
                                                              .classes = classes,
                                                              .width = width,
                                                              .init_scale = 1.0f / std::sqrt(float(width)),
                                                              .axis = axes.tensor});
  m.cuts_boundaries = axes.tensor.size() > 1;
  m.sample = {dtype, {1, c.sizes.front()}};
  return m;
}

}  // namespace cleave::model
