#include "kernels/dense.h"

namespace cleave::kernels::cpu {

void run(const DenseActivation& op) {
  run(op.product());
  run(op.activation());
}

void run(const DenseActivationGradient& op) {
  run(op.product());
  run(op.activation());
}

void run(const DenseGated& op) {
  run(op.product());
  run(op.activation());
}

void run(const DenseGatedGradient& op) {
  run(op.product());
  run(op.activation());
}

void run(const DenseWeightGradient& op) {
  run(op.product());
  run(op.bias_gradient());
}

}  // namespace cleave::kernels::cpu
