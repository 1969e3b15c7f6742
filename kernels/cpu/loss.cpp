#include "kernels/loss.h"

#include "kernels/cpu/operands.h"

namespace cleave::kernels::cpu {

namespace {

void require_targets(const Tensor& tensor, int64_t vocab) {
  const int32_t* targets = tensor.as<int32_t>();
  for (int64_t i = 0; i < tensor.numel(); ++i)
    require(targets[i] == -100 || (targets[i] >= 0 && targets[i] < vocab), Exit::data,
            "target {} at position {} of the batch is neither in the vocabulary [0, {}) nor -100 (ignored)",
            targets[i], i, vocab);
}

template <class Op>
float* hits_of(const Op& op) {
  return op.hits.defined() ? op.hits.template as<float>() : nullptr;
}

}  // namespace

void run(const CrossEntropy& op) {
  require_targets(op.targets, op.vocab);
  cross_entropy({.logits = vec(op.logits),
                 .dlogits = vec(op.dlogits.defined() ? op.dlogits : op.logits),
                 .losses = op.losses.as<float>(),
                 .hits = hits_of(op),
                 .targets = op.targets.as<int32_t>(),
                 .rows = op.logits.dim(0),
                 .columns = op.logits.dim(1),
                 .vocab = op.vocab,
                 .scale = op.scale,
                 .cap = op.cap});
}

void run(const SoftmaxPart& op) {
  softmax_part({.logits = vec(op.logits),
                .dlogits = {},
                .targets = op.targets.as<int32_t>(),
                .rows = op.logits.dim(0),
                .columns = op.logits.dim(1),
                .vocab = op.vocab,
                .first = op.first,
                .stats = op.stats.as<float>(),
                .parts = 1,
                .part = 0,
                .losses = nullptr,
                .hits = nullptr,
                .scale = 0,
                .cap = 0});
}

void run(const CrossEntropyPart& op) {
  require_targets(op.targets, op.all_vocab);
  cross_entropy_part({.logits = vec(op.logits),
                      .dlogits = vec(op.dlogits.defined() ? op.dlogits : op.logits),
                      .targets = op.targets.as<int32_t>(),
                      .rows = op.logits.dim(0),
                      .columns = op.logits.dim(1),
                      .vocab = op.vocab,
                      .first = op.first,
                      .stats = op.stats.as<float>(),
                      .parts = op.stats.dim(0),
                      .part = op.part,
                      .losses = op.losses.as<float>(),
                      .hits = hits_of(op),
                      .scale = op.scale,
                      .cap = op.cap});
}

}  // namespace cleave::kernels::cpu
