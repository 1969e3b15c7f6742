#include "model/dense.h"

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "model/joined.h"

namespace cleave::model {

Dense::Dense(std::vector<Part> parts, Bias bias) : parts_(std::move(parts)), bias_(bias) {
  for (const Part& p : parts_) {
    const std::vector<int64_t>& shape = p.weight.spec().shape;
    in_ = shape[1], out_ += p.used.empty() ? shape[0] : p.used.size();
  }
}

void Dense::declare(DeclaredUnit& unit) {
  for (Member which : {&Part::weight, &Part::bias}) {
    std::vector<Parameter*> parts;
    for (Part& p : parts_)
      if (p.*which) unit.add(p.*which), parts.push_back(&(p.*which));
    if (parts.size() > 1) unit.as_one.push_back(parts);
  }
}

bool Dense::whole() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.used.empty(); });
}

Tensor Dense::together(Member which, std::span<const Tensor> params, Arena& scratch, Stream& stream) const {
  std::vector<Tensor> tensors;
  for (const Part& p : parts_)
    if (p.*which) tensors.push_back((p.*which).in(params));
  if (tensors.empty()) return {};
  if (whole()) return joined(tensors);
  Shape shape = tensors[0].shape();
  shape.dims[0] = out_;
  const Tensor all = scratch.take(tensors[0].dtype(), shape);
  int64_t row = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Tensor mine = parts_[i].used.empty() ? tensors[i] : tensors[i].rows(parts_[i].used);
    copy(all.rows({row, row + mine.dim(0)}), mine, stream);
    row += mine.dim(0);
  }
  return all;
}

Linear Dense::bind(std::span<const Tensor> params, Arena& scratch, Stream& stream) const {
  return {in_, out_, together(&Part::weight, params, scratch, stream),
          bias_ == Bias::added ? together(&Part::bias, params, scratch, stream) : Tensor()};
}

std::vector<ParamGradient> Dense::gradients(Member which, std::span<ParamGradient> grads) const {
  std::vector<ParamGradient> out;
  for (const Part& p : parts_)
    if (ParamGradient* g = (p.*which).in(grads)) out.push_back(*g);
  return out;
}

bool Dense::trains(std::span<ParamGradient> grads) const {
  return std::any_of(parts_.begin(), parts_.end(), [&](const Part& p) {
    const ParamGradient *weight = p.weight.in(grads), *bias = p.bias.in(grads);
    return (weight && weight->wanted()) || (bias && bias->wanted());
  });
}

void Dense::add_apart(std::span<ParamGradient> parts, Tensor gradient, Stream& stream) const {
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Range used = parts_[i].used;
    const bool added = parts[i].accumulate();
    Tensor to = parts[i].tensor;
    if (!used.empty() && !added) kernels::launch(kernels::Fill{.y = to}, stream);
    if (!used.empty()) to = to.rows(used);
    const Tensor from = gradient.rows({row, row + to.dim(0)});
    if (added)
      kernels::launch(kernels::Axpy{.y = to, .x = from}, stream);
    else
      kernels::launch(kernels::Cast{.y = to, .x = from}, stream);
    row += to.dim(0);
  }
}

void Dense::backward_weight(const Linear::OutputGradient& dy, Tensor x, std::span<ParamGradient> grads,
                            Arena& scratch, Stream& stream) const {
  const Linear product{.in = in_, .out = out_};
  std::vector<ParamGradient> weights = gradients(&Part::weight, grads),
                             biases = gradients(&Part::bias, grads);
  const bool of_bias = !biases.empty() && biases[0].wanted();  // all parts or none: they are one
  if (!weights[0].wanted() && !of_bias) return;
  ParamGradient dweight, dbias;
  if (whole()) {
    if (weights[0].wanted()) dweight = joined(weights);
    if (of_bias) dbias = joined(biases);
    return product.backward_weight(dy, x, dweight, of_bias ? &dbias : nullptr, stream);
  }
  bool written[2] = {false, false};
  if (weights[0].wanted()) dweight = {scratch.take(DType::fp32, {out_, in_}), &written[0]};
  if (of_bias) dbias = {scratch.take(DType::fp32, {out_}), &written[1]};
  product.backward_weight(dy, x, dweight, of_bias ? &dbias : nullptr, stream);
  if (weights[0].wanted()) add_apart(weights, dweight.tensor, stream);
  if (of_bias) add_apart(biases, dbias.tensor, stream);
}

}  // namespace cleave::model
