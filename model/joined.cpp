#include "model/joined.h"

namespace cleave::model {

Tensor joined(std::span<const Tensor> parts) {
  CHECK(!parts.empty(), "no parameters to join");
  const Tensor& first = parts[0];
  Shape shape = first.shape();
  int64_t bytes = first.bytes();
  for (const Tensor& t : parts.subspan(1)) {
    Shape like = t.shape();
    like.dims[0] = first.dim(0);
    CHECK(t.dtype() == first.dtype() && like == first.shape(), "joined parameters differ in type or width");
    // Without memory, in a dry run, all start at null.
    CHECK(!first.raw() || static_cast<std::byte*>(first.raw()) + bytes == t.raw(),
          "joined parameters are not neighbours: declare them one after the other, with equal decay");
    shape.dims[0] += t.dim(0);
    bytes += t.bytes();
  }
  return {first.raw(), first.dtype(), shape, first.memory()};
}

ParamGradient joined(std::span<ParamGradient> parts) {
  std::vector<Tensor> tensors;
  for (const ParamGradient& g : parts) tensors.push_back(g.tensor);
  for (ParamGradient& g : parts.subspan(1)) g.accumulate();
  return {joined(std::span<const Tensor>(tensors)), parts[0].written};
}

}  // namespace cleave::model
