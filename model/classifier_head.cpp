#include "model/classifier_head.h"

#include "kernels/activation.h"
#include "kernels/loss.h"
#include "model/linear.h"

namespace cleave::model {

ClassifierHead::ClassifierHead(Config config)
    : c_(std::move(config)), part_(c_.axis.padded_part(c_.classes)) {
  const Init normal{Init::Kind::normal, c_.init_scale};
  weight_ = Parameter(c_.axis.cut_padded({c_.weight, {c_.classes, c_.width}, normal, true}, 0));
  if (!c_.bias.empty()) bias_ = Parameter(c_.axis.cut_padded({c_.bias, {c_.classes}, {}, false}, 0));
  declared_ = {{c_.unit}};
  declared_.front().add(weight_), declared_.front().add(bias_);
  units_ = settle(declared_);
}

void ClassifierHead::freeze(const config::FreezeRule& rule) { units_ = settle(declared_, rule); }

void ClassifierHead::product(Tensor z, Tensor x, std::span<const Tensor> params, Stream& stream) const {
  Linear{c_.width, part_.size, weight_.in(params), bias_.in(params)}.forward(z, x, stream);
  if (c_.cap > 0) kernels::launch(kernels::SoftCap{.y = z, .x = z, .cap = c_.cap}, stream);
}

void ClassifierHead::loss(const HeadArgs& a, Range rows, Tensor z, Tensor dz, Tensor stats) const {
  const Tensor losses = a.losses.slice(rows), targets = a.targets.slice(rows);
  const Tensor hits = a.hits.defined() ? a.hits.slice(rows) : Tensor();
  const Tensor dlogits = dz.raw() == z.raw() && dz.dtype() == z.dtype() ? Tensor() : dz;
  const float scale = a.grads.empty() ? 0.0f : a.scale;
  if (c_.axis.size() == 1) {
    kernels::launch(kernels::CrossEntropy{.logits = z,
                                          .losses = losses,
                                          .dlogits = dlogits,
                                          .targets = targets,
                                          .vocab = c_.classes,
                                          .scale = scale,
                                          .cap = c_.cap,
                                          .hits = hits},
                    a.stream);
    return;
  }
  const Tensor mine = stats.rows({c_.axis.rank(), c_.axis.rank() + 1}).view({rows.size(), 3});
  kernels::launch(kernels::SoftmaxPart{.stats = mine,
                                       .logits = z,
                                       .targets = targets,
                                       .vocab = part_.real.size(),
                                       .first = part_.real.begin},
                  a.stream);
  c_.axis.exchange(stats, mine, a.stream, "softmax of the vocabulary's parts");
  kernels::launch(kernels::CrossEntropyPart{.losses = losses,
                                            .dlogits = dlogits,
                                            .logits = z,
                                            .targets = targets,
                                            .stats = stats,
                                            .vocab = part_.real.size(),
                                            .first = part_.real.begin,
                                            .all_vocab = c_.classes,
                                            .scale = scale,
                                            .cap = c_.cap,
                                            .hits = hits,
                                            .part = c_.axis.rank()},
                  a.stream);
}

void ClassifierHead::run(const HeadArgs& a) const {
  const bool train = !a.grads.empty();
  const Tensor all_x = c_.axis.all_rows_of(a.x, a.scratch);
  const Tensor all_dx = train ? c_.axis.all_rows_of(a.dx, a.scratch) : Tensor();
  c_.axis.gather(all_x, a.x, a.stream, "the head's input");
  const int64_t rows = all_x.dim(0), columns = part_.size;
  const DType type = a.x.dtype();
  const bool separate = a.logits.type != type;  // the gradient is separate from the logits
  // An evaluation uses the chunks of training, because they share its scratch.
  const int64_t chunk =
      a.logits.rows_of(rows, columns * (size_of(a.logits.type) + (separate ? size_of(type) : 0)), c_.width);
  const Linear linear{c_.width, columns, weight_.in(a.params)};
  const Tensor buffer = a.scratch.take(a.logits.type, {chunk, columns});
  const Tensor gradient = separate && train ? a.scratch.take(type, {chunk, columns}) : buffer;
  const Tensor stats =
      c_.axis.size() > 1 ? a.scratch.take(DType::fp32, {c_.axis.size() * chunk * 3}) : Tensor();
  Event summed;  // overlaps the last chunk's product with x
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const Range r{begin, std::min(rows, begin + chunk)};
    const Tensor x = all_x.rows(r), z = buffer.rows({0, r.size()}), dz = gradient.rows({0, r.size()});
    product(z, x, a.params, a.stream);
    loss(a, r, z, dz,
         stats.defined() ? stats.slice({0, c_.axis.size() * r.size() * 3}).view({c_.axis.size(), r.size(), 3})
                         : Tensor());
    if (!train) continue;
    linear.backward_input(all_dx.rows(r), dz, a.stream);
    if (r.end == rows) summed = c_.axis.start_sum(a.dx, all_dx, a.stream, "gradient of the head's input");
    linear.backward_weight(dz, x, *weight_.in(a.grads), bias_.in(a.grads), a.stream);
  }
  a.stream.wait(summed);
}

void ClassifierHead::logits(Tensor out, Tensor x, Range rows, std::span<const Tensor> params, Arena& scratch,
                            Stream& stream) const {
  const Tensor all_x = c_.axis.all_rows_of(x, scratch);
  c_.axis.gather(all_x, x, stream, "the head's input");
  product(out, all_x.rows(rows), params, stream);
}

}  // namespace cleave::model
