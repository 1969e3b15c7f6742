#include "kernels/loss.h"

#include "kernels/cpu/operands.h"

namespace cleave::cpu {

void run(const CrossEntropy& op) {
  const int32_t* targets = op.targets.as<int32_t>();
  for (int64_t i = 0; i < op.targets.numel(); ++i)
    require(targets[i] == -100 || (targets[i] >= 0 && targets[i] < op.vocab), Exit::data,
            "target {} at place {} of the batch is neither in the vocabulary [0, {}) nor -100 (ignored)",
            targets[i], i, op.vocab);
  cross_entropy({.logits = vec(op.logits),
                 .dlogits = vec(op.dlogits.defined() ? op.dlogits : op.logits),
                 .losses = op.losses.as<float>(),
                 .targets = targets,
                 .rows = op.logits.dim(0),
                 .columns = op.logits.dim(1),
                 .vocab = op.vocab,
                 .scale = op.scale});
}

}  // namespace cleave::cpu
