#include "kernels/activation.h"

#include "kernels/cpu/operands.h"

namespace cleave::kernels::cpu {

void run(const ActivationForward& op) {
  const UnaryArgs args{.y = vec(op.y), .x = vec(op.x), .dy = {}, .numel = op.x.numel()};
  switch (op.kind) {
    case Activation::gelu_tanh:
      return gelu_tanh(args);
    case Activation::gelu_erf:
      return gelu_erf(args);
    case Activation::relu:
      return relu(args);
    case Activation::silu:
      return silu(args);
  }
}

void run(const ActivationBackward& op) {
  const UnaryArgs args{.y = vec(op.dx), .x = vec(op.x), .dy = vec(op.dy), .numel = op.x.numel()};
  switch (op.kind) {
    case Activation::gelu_tanh:
      return gelu_tanh_grad(args);
    case Activation::gelu_erf:
      return gelu_erf_grad(args);
    case Activation::relu:
      return relu_grad(args);
    case Activation::silu:
      return silu_grad(args);
  }
}

namespace {

GateKind kind_of(Activation kind) {
  switch (kind) {
    case Activation::gelu_tanh:
      return GateKind::gelu_tanh;
    case Activation::gelu_erf:
      return GateKind::gelu_erf;
    case Activation::relu:
      return GateKind::relu;
    case Activation::silu:
      break;
  }
  return GateKind::silu;
}

}  // namespace

void run(const GatedForward& op) {
  gated({.y = vec(op.y),
         .x = vec(op.x),
         .dy = {},
         .rows = op.y.dim(0),
         .width = op.y.dim(1),
         .kind = kind_of(op.kind)});
}

void run(const GatedBackward& op) {
  gated_grad({.y = vec(op.dx),
              .x = vec(op.x),
              .dy = vec(op.dy),
              .rows = op.dy.dim(0),
              .width = op.dy.dim(1),
              .kind = kind_of(op.kind)});
}

void run(const SoftCap& op) { soft_cap({vec(op.y), vec(op.x), op.x.numel(), op.cap}); }

void run(const Add& op) { add({vec(op.y), vec(op.a), vec(op.b), op.y.numel()}); }

void run(const Dropout& op) {
  dropout({vec(op.y), vec(op.x), op.y.numel(), op.p, op.philox.seed, op.philox.stream, op.offset});
}

}  // namespace cleave::kernels::cpu
