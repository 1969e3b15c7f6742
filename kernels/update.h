// Optimizer updates of parameter slices. All except LAMB are elementwise, so they do not depend on the
// division into slices.
#pragma once
#include "kernels/launch.h"
#include "kernels/update_numbers.h"

namespace cleave::kernels {

// Adam and AdamW (arXiv 1412.6980, 1711.05101), fused with the gradient scale and the cast to the working
// copy:
//   g = grad * grad_scale; without decoupled: g += weight_decay * param
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   param -= lr * ((m / c1) / (sqrt(v / c2) + eps) + (decoupled ? weight_decay * param : 0));  copy = param
// with c = 1 - beta^step, or 1 without bias_correction. param, m, v: fp32, updated in place; grad: any float
// type; copy: the working copy in any float type, or undefined. Equal numel.
struct Adam {
  Tensor param, m, v, copy = {};
  Tensor grad;
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0, grad_scale = 1;
  int64_t step = 1;  // 1-based
  bool decoupled = true, bias_correction = true;
  void check() const;
  Traffic traffic() const { return {param, param, m, m, v, v, grad, copy}; }
  AdamNumbers numbers() const;
};
CLEAVE_KERNEL(Adam)

// Stochastic gradient descent as in PyTorch: g = grad * grad_scale + weight_decay * param; if momentum != 0:
// buffer = first ? g : momentum * buffer + (1 - dampening) * g, g = nesterov ? g + momentum * buffer :
// buffer; param -= lr * g; copy = param. buffer is undefined without momentum.
struct Sgd {
  Tensor param, buffer = {}, copy = {};
  Tensor grad;
  float lr = 1e-3f, momentum = 0, dampening = 0, weight_decay = 0, grad_scale = 1;
  bool nesterov = false, first = true;
  void check() const;
  Traffic traffic() const { return {param, param, buffer, buffer, grad, copy}; }
  SgdNumbers numbers() const;
};
CLEAVE_KERNEL(Sgd)

// Lion (arXiv 2302.06675): g = grad * grad_scale;
//   param = (1 - lr * weight_decay) param - lr * sign(beta1 m + (1 - beta1) g) with sign(0) = 0;
//   m = beta2 m + (1 - beta2) g;  copy = param
// Operands as in Adam.
struct Lion {
  Tensor param, m, copy = {};
  Tensor grad;
  float lr = 1e-3f, beta1 = 0.9f, beta2 = 0.999f, weight_decay = 0, grad_scale = 1;
  void check() const;
  Traffic traffic() const { return {param, param, m, m, grad, copy}; }
  LionNumbers numbers() const;
};
CLEAVE_KERNEL(Lion)

// Adagrad (JMLR 12, 2011) as in PyTorch: g = grad * grad_scale + weight_decay * param;
//   sum += g^2;  param -= lr * g / (sqrt(sum) + eps);  copy = param
// Operands as in Adam.
struct Adagrad {
  Tensor param, sum, copy = {};
  Tensor grad;
  float lr = 1e-2f, eps = 1e-10f, weight_decay = 0, grad_scale = 1;
  void check() const;
  Traffic traffic() const { return {param, param, sum, sum, grad, copy}; }
  AdagradNumbers numbers() const;
};
CLEAVE_KERNEL(Adagrad)

// LAMB (arXiv 1904.00962) as in DeepSpeed's FusedLamb, in two passes, because a step depends on norms of the
// whole parameter, which may be divided into many slices. With g = grad * grad_scale,
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   u = m / (sqrt(v) + eps) + weight_decay * param
//   squares[0] += sum of param^2;  squares[1] += sum of u^2
// m, v: fp32, updated in place; squares: fp64 [2], added to; grad: any float type. The order of the sums
// depends on numel only.
struct LambMoments {
  Tensor m, v, squares;
  Tensor param, grad;
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0, grad_scale = 1;
  void check() const;
  Traffic traffic() const { return {param, m, m, v, v, grad}; }
  LambNumbers numbers() const;
};
CLEAVE_KERNEL(LambMoments)

// Second pass, with u of the first: param -= rate * u;  copy = param. Operands as in Adam.
struct LambStep {
  Tensor param, copy = {};
  Tensor m, v;
  float rate = 1e-3f, eps = 1e-8f, weight_decay = 0;
  void check() const;
  Traffic traffic() const { return {param, param, m, v, copy}; }
  LambStepNumbers numbers() const;
};
CLEAVE_KERNEL(LambStep)

}  // namespace cleave::kernels
