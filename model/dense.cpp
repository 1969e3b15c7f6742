#include "model/dense.h"

#include <cmath>

#include "device/copy.h"
#include "kernels/elementwise.h"
#include "kernels/fp8.h"
#include "model/joined.h"

namespace cleave::model {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string stem_of(const ParamSpec& weight) {
  return weight.name.substr(0, weight.name.size() - kWeight.size());
}

// Returns an adapter matrix for a weight [out, in]: A [rank, in] or B [out, rank], which has the dim `shared`
// in common with it. If an axis cuts that dim, the matrix is cut like the weight; if it cuts the other one,
// the rank's result with the whole matrix is a partial sum.
ParamSpec beside(const ParamSpec& weight, int shared, int64_t rank) {
  ParamSpec p{.name = stem_of(weight) + (shared == 1 ? ".lora_A.weight" : ".lora_B.weight"),
              .shape = weight.shape,
              .init = {},
              .decay = weight.decay};
  p.shape[size_t(1 - shared)] = rank;
  if (shared == 1) p.init = {Init::Kind::uniform, 1 / std::sqrt(float(weight.whole_shape()[1]))};
  for (const Cut& c : weight.cuts) p.cuts.push_back(c.split && c.split.dim == shared ? c : Cut{c.axis});
  return p;
}

}  // namespace

Dense::Dense(std::vector<Part> parts, Bias bias) : parts_(std::move(parts)), bias_(bias) {
  for (const Part& p : parts_) in_ = p.weight.spec().shape[1], out_ += outputs(p);
}

int64_t Dense::outputs(const Part& p) const {
  return p.used.empty() ? p.weight.spec().shape[0] : p.used.size();
}

void Dense::attach(const config::AdapterRule& rule, std::vector<std::string>& linears) {
  size_ = rule.size();
  for (Part& p : parts_) {
    linears.push_back(stem_of(p.weight.spec()));
    if (!rule.applies_to(linears.back())) continue;
    p.a = Parameter(beside(p.weight.spec(), 1, size_.rank));
    p.b = Parameter(beside(p.weight.spec(), 0, size_.rank));
    ranks_ += size_.rank;
  }
}

void Dense::use_fp8(int64_t& layers) {
  require(in_ % kernels::kFp8Terms == 0 && out_ % kernels::kFp8Terms == 0, Exit::usage,
          "cleave.fp8: unsupported shape ({} maps {} columns to {} per rank, expected multiples of {}); set "
          "cleave.fp8.scaling to off, or change tensor_parallel.autotp_size",
          stem_of(parts_.front().weight.spec()), in_, out_, kernels::kFp8Terms);
  fp8_ = Fp8Dense(layers++, in_, out_);
}

void Dense::declare(std::vector<DeclaredUnit>& units) {
  for (Member which : {&Part::weight, &Part::bias}) {
    std::vector<Parameter*> parts;
    for (Part& p : parts_)
      if (p.*which) units.front().add(p.*which), parts.push_back(&(p.*which));
    if (parts.size() > 1) units.front().as_one.push_back(parts);
  }
  if (ranks_ == 0) return;
  if (!units.back().attached) units.push_back({.name = units.front().name + ".lora", .attached = true});
  for (Member which : {&Part::a, &Part::b})
    for (Part& p : parts_) units.back().add(p.*which);
}

bool Dense::whole() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& p) { return p.used.empty(); });
}

template <class Visit>
void Dense::each_adapter(Visit visit) const {
  int64_t row = 0, column = 0;
  for (const Part& p : parts_) {
    if (p.a) visit(p, row, column), column += size_.rank;
    row += outputs(p);
  }
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

// Combines the B of all parts into one block matrix with zeros elsewhere: a single small product.
Adapter Dense::adapter(std::span<const Tensor> params, Arena& scratch, Stream& stream) const {
  std::vector<Tensor> a;
  each_adapter([&](const Part& p, int64_t, int64_t) { a.push_back(p.a.in(params)); });
  Adapter all{.a = joined(a), .scale = size_.scale};
  if (parts_.size() == 1) return all.b = parts_[0].b.in(params), all;
  all.b = scratch.take(all.a.dtype(), {out_, ranks_});
  kernels::launch(kernels::Fill{.y = all.b}, stream);
  each_adapter([&](const Part& p, int64_t row, int64_t column) {
    const Tensor b = p.b.in(params), used = p.used.empty() ? b : b.rows(p.used);
    const Range to{row * ranks_ + column, (row + outputs(p)) * ranks_};
    kernels::launch(kernels::CopyRuns{.y = all.b.slice(to),
                                      .x = used,
                                      .width = size_.rank,
                                      .outer = {.count = outputs(p), .y = ranks_, .x = size_.rank}},
                    stream);
  });
  return all;
}

Linear Dense::bind(std::span<const Tensor> params, Arena& scratch, Stream& stream) const {
  Linear bound{.in = in_, .out = out_};
  if (params.empty()) return bound;
  bound.weight = together(&Part::weight, params, scratch, stream);
  if (bias_ == Bias::added) bound.bias = together(&Part::bias, params, scratch, stream);
  if (ranks_ > 0) bound.adapter = adapter(params, scratch, stream);
  return bound;
}

template <class Args>
Linear Dense::bound(const Args& a, int64_t rows) const {
  Linear bound = bind(a.params, a.scratch, a.stream);
  if (fp8_ && bound.weight.defined()) bound.fp8 = fp8_.bind(a, bound.weight.view({out_, in_}), rows);
  return bound;
}

Linear Dense::bind(const ForwardArgs& a, int64_t rows) const {
  Linear bound = this->bound(a, rows);
  if (ranks_ == 0) return bound;
  bound.adapter.inner = a.keep.take(a.x.dtype(), {rows, ranks_});
  a.saved.put(this, KeptInner{bound.adapter.inner});
  return bound;
}

Linear Dense::bind(const BackwardArgs& a, int64_t rows) const {
  Linear bound = this->bound(a, rows);
  if (ranks_ == 0) return bound;
  Tensor& inner = bound.adapter.inner;
  if (a.part == BackwardPart::weight) return inner = a.for_weight->get<KeptInner>(this).inner, bound;
  inner = (a.part == BackwardPart::both ? a.scratch : *a.keep).take(a.x.dtype(), {rows, ranks_});
  if (a.part == BackwardPart::input) a.for_weight->put(this, KeptInner{inner});
  return bound;
}

std::vector<ParamGradient> Dense::gradients(Member which, std::span<ParamGradient> grads) const {
  std::vector<ParamGradient> out;
  for (const Part& p : parts_)
    if (ParamGradient* g = (p.*which).in(grads)) out.push_back(*g);
  return out;
}

bool Dense::trains(std::span<ParamGradient> grads) const {
  for (Member which : {&Part::weight, &Part::bias, &Part::a})
    for (const ParamGradient& g : gradients(which, grads))
      if (g.wanted()) return true;
  return false;
}

void Dense::add_separately(Member which, std::span<ParamGradient> grads, Tensor gradient,
                           Stream& stream) const {
  int64_t row = 0;
  for (const Part& p : parts_) {
    ParamGradient* slot = (p.*which).in(grads);
    if (!slot) continue;
    const bool added = slot->accumulate();
    Tensor to = slot->tensor;
    if (!p.used.empty() && !added) kernels::launch(kernels::Fill{.y = to}, stream);
    if (!p.used.empty()) to = to.rows(p.used);
    const Tensor from = gradient.rows({row, row + to.dim(0)});
    if (added)
      kernels::launch(kernels::Axpy{.y = to, .x = from}, stream);
    else
      kernels::launch(kernels::Cast{.y = to, .x = from}, stream);
    row += to.dim(0);
  }
}

void Dense::add_own(const Linear::OutputGradient& dy, Tensor x, const BackwardArgs& a) const {
  const auto add = [&](ParamGradient& dweight, ParamGradient* dbias) {
    ParamGradient none;
    const bool in_fp8 = fp8_ && dweight.wanted();
    if (in_fp8) fp8_.add_weight(dweight, dy.all, x, a);
    Linear{.in = in_, .out = out_}.backward_weight(dy, x, in_fp8 ? none : dweight, dbias, a.stream);
  };
  std::vector<ParamGradient> weights = gradients(&Part::weight, a.grads),
                             biases = gradients(&Part::bias, a.grads);
  const bool of_bias = !biases.empty() && biases[0].wanted();  // all or none: they are one
  if (!weights[0].wanted() && !of_bias) return;
  ParamGradient dweight, dbias;
  if (whole()) {
    if (weights[0].wanted()) dweight = joined(weights);
    if (of_bias) dbias = joined(biases);
    return add(dweight, of_bias ? &dbias : nullptr);
  }
  bool written[2] = {false, false};
  if (weights[0].wanted()) dweight = {a.scratch.take(DType::fp32, {out_, in_}), &written[0]};
  if (of_bias) dbias = {a.scratch.take(DType::fp32, {out_}), &written[1]};
  add(dweight, of_bias ? &dbias : nullptr);
  if (weights[0].wanted()) add_separately(&Part::weight, a.grads, dweight.tensor, a.stream);
  if (of_bias) add_separately(&Part::bias, a.grads, dbias.tensor, a.stream);
}

void Dense::add_adapters(Tensor dinner, Tensor dy, Tensor x, const BackwardArgs& a) const {
  const Linear first{.in = in_, .out = ranks_}, second{.in = ranks_, .out = out_};
  const Tensor inner = a.saved.get<KeptInner>(this).inner;
  std::vector<ParamGradient> of_a = gradients(&Part::a, a.grads), of_b = gradients(&Part::b, a.grads);
  ParamGradient da = joined(of_a);
  first.backward_weight(dinner, x, da, nullptr, a.stream);
  if (parts_.size() == 1) return second.backward_weight(dy, inner, of_b[0], nullptr, a.stream);
  // For all outputs and all ranks; each B's block is taken out of it.
  bool written = false;
  ParamGradient all{a.scratch.take(DType::fp32, {out_, ranks_}), &written};
  second.backward_weight(dy, inner, all, nullptr, a.stream);
  const Tensor separate = a.scratch.take(DType::fp32, {out_, size_.rank});
  int64_t at = 0;
  each_adapter([&](const Part& p, int64_t row, int64_t column) {
    const int64_t rows = outputs(p);
    kernels::launch(kernels::CopyRuns{.y = separate.rows({at, at + rows}),
                                      .x = all.tensor.slice({row * ranks_ + column, (row + rows) * ranks_}),
                                      .width = size_.rank,
                                      .outer = {.count = rows, .y = size_.rank, .x = ranks_}},
                    a.stream);
    at += rows;
  });
  add_separately(&Part::b, a.grads, separate, a.stream);
}

void Dense::backward_weight(const Linear& bound, const Linear::OutputGradient& dy, Tensor x,
                            const BackwardArgs& a) const {
  add_own(dy, x, a);
  if (ranks_ > 0) add_adapters(bound.adapter.inner, dy.all, x, a);
}

}  // namespace cleave::model
