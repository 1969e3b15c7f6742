#include "model/classifier_head.h"

#include "kernels/loss.h"
#include "model/linear.h"

namespace cleave {

std::vector<UnitSpec> ClassifierHead::units() const {
  UnitSpec unit{c_.unit, {{c_.weight, {c_.classes, c_.width}, {Init::Kind::normal, c_.init_scale}, true}}};
  if (!c_.bias.empty()) unit.params.push_back({c_.bias, {c_.classes}, {}, false});
  return {unit};
}

void ClassifierHead::run(const HeadArgs& a) const {
  const int64_t rows = a.x.dim(0);
  const bool train = !a.grads.empty();
  // The loss is taken from fp32 logits; their gradient has the model's type, as every other activation's.
  const DType type = a.x.dtype();
  const bool in_place = type == DType::fp32;
  const int64_t bytes_each = size_of(DType::fp32) + (train && !in_place ? size_of(type) : 0);
  const int64_t most = std::max<int64_t>(1, c_.chunk_bytes / (c_.classes * bytes_each));
  const int64_t chunk = ceil_div(rows, ceil_div(rows, most));  // equal chunks
  const Linear linear{c_.width, c_.classes, a.params[0], c_.bias.empty() ? Tensor() : a.params[1]};
  const Tensor buffer = a.scratch.take(DType::fp32, {chunk, c_.classes});
  const Tensor gradient = train && !in_place ? a.scratch.take(type, {chunk, c_.classes}) : buffer;
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const Range r{begin, std::min(rows, begin + chunk)};
    const Tensor x = a.x.rows(r), z = buffer.rows({0, r.size()}), dz = gradient.rows({0, r.size()});
    linear.forward(z, x, a.stream);
    launch(CrossEntropy{.logits = z,
                        .losses = a.losses.slice(r),
                        .dlogits = in_place ? Tensor() : dz,
                        .targets = a.targets.slice(r),
                        .vocab = c_.classes,
                        .scale = train ? a.scale : 0.0f},
           a.stream);
    if (!train) continue;
    linear.backward(a.dx.rows(r), dz, x, a.grads[0], c_.bias.empty() ? nullptr : &a.grads[1], a.stream);
  }
}

void ClassifierHead::logits(Tensor out, Tensor x, std::span<const Tensor> params, Stream& stream) const {
  Linear{c_.width, c_.classes, params[0], c_.bias.empty() ? Tensor() : params[1]}.forward(out, x, stream);
}

}  // namespace cleave
