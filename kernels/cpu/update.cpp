#include "kernels/update.h"

#include <cmath>

#include "kernels/cpu/operands.h"

namespace cleave::kernels::cpu {

void run(const Adam& op) {
  const double c1 = op.bias_correction ? 1.0 - std::pow(double(op.beta1), double(op.step)) : 1.0;
  const double c2 = op.bias_correction ? 1.0 - std::pow(double(op.beta2), double(op.step)) : 1.0;
  adam({.param = op.param.as<float>(),
        .m = op.m.as<float>(),
        .v = op.v.as<float>(),
        .copy = vec(op.copy),
        .grad = vec(op.grad),
        .numel = op.param.numel(),
        .lr = op.lr,
        .beta1 = op.beta1,
        .beta2 = op.beta2,
        .eps = op.eps,
        .weight_decay = op.weight_decay,
        .grad_scale = op.grad_scale,
        .inverse_c1 = float(1.0 / c1),
        .inverse_c2 = float(1.0 / c2),
        .decoupled = op.decoupled});
}

void run(const Sgd& op) {
  sgd({.param = op.param.as<float>(),
       .buffer = op.momentum != 0 ? op.buffer.as<float>() : nullptr,
       .copy = vec(op.copy),
       .grad = vec(op.grad),
       .numel = op.param.numel(),
       .lr = op.lr,
       .momentum = op.momentum,
       .dampening = op.dampening,
       .weight_decay = op.weight_decay,
       .grad_scale = op.grad_scale,
       .nesterov = op.nesterov,
       .first = op.first});
}

void run(const Lion& op) {
  lion({.param = op.param.as<float>(),
        .m = op.m.as<float>(),
        .copy = vec(op.copy),
        .grad = vec(op.grad),
        .numel = op.param.numel(),
        .lr = op.lr,
        .beta1 = op.beta1,
        .beta2 = op.beta2,
        .kept = 1.0f - op.lr * op.weight_decay,
        .grad_scale = op.grad_scale});
}

void run(const Adagrad& op) {
  adagrad({.param = op.param.as<float>(),
           .sum = op.sum.as<float>(),
           .copy = vec(op.copy),
           .grad = vec(op.grad),
           .numel = op.param.numel(),
           .lr = op.lr,
           .eps = op.eps,
           .weight_decay = op.weight_decay,
           .grad_scale = op.grad_scale});
}

void run(const LambMoments& op) {
  lamb_moments({.m = op.m.as<float>(),
                .v = op.v.as<float>(),
                .param = op.param.as<float>(),
                .squares = op.squares.as<double>(),
                .grad = vec(op.grad),
                .numel = op.param.numel(),
                .beta1 = op.beta1,
                .beta2 = op.beta2,
                .eps = op.eps,
                .weight_decay = op.weight_decay,
                .grad_scale = op.grad_scale});
}

void run(const LambStep& op) {
  lamb_step({.param = op.param.as<float>(),
             .copy = vec(op.copy),
             .m = op.m.as<float>(),
             .v = op.v.as<float>(),
             .numel = op.param.numel(),
             .rate = op.rate,
             .eps = op.eps,
             .weight_decay = op.weight_decay});
}

}  // namespace cleave::kernels::cpu
