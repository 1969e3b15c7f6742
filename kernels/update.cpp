#include "kernels/update.h"

#include <cmath>

#include "kernels/checks.h"
#include "kernels/launched.h"

namespace cleave::kernels {
namespace {

struct State {
  const char* name;
  const Tensor& tensor;
};
void check_state(const char* op, const Tensor& param, std::initializer_list<State> states) {
  Operand(op, "param", param).is(DType::fp32);
  for (const auto& [name, tensor] : states) Operand(op, name, tensor).is(DType::fp32).numel(param.numel());
}
void check_gradient(const char* op, const Tensor& param, const Tensor& grad) {
  Operand(op, "grad", grad).is_float().numel(param.numel());
}
void check_copy(const char* op, const Tensor& param, const Tensor& copy) {
  if (copy.defined()) Operand(op, "copy", copy).is_float().numel(param.numel());
}

template <class Op>
AverageNumbers averages(const Op& op) {
  return {op.beta1, op.beta2, 1.0f - op.beta1, 1.0f - op.beta2};
}

}  // namespace

void Adam::check() const {
  check_state("Adam", param, {{"m", m}, {"v", v}});
  check_gradient("Adam", param, grad), check_copy("Adam", param, copy);
  CHECK(step >= 1, "Adam: step counts from 1, got {}", step);
}
CLEAVE_LAUNCH(Adam)

AdamNumbers Adam::numbers() const {
  const double c1 = bias_correction ? 1.0 - std::pow(double(beta1), double(step)) : 1.0;
  const double c2 = bias_correction ? 1.0 - std::pow(double(beta2), double(step)) : 1.0;
  return {.averages = averages(*this),
          .lr = lr,
          .eps = eps,
          .scale = grad_scale,
          .inside = decoupled ? 0 : weight_decay,
          .outside = decoupled ? weight_decay : 0,
          .c1 = float(1.0 / c1),
          .c2 = float(1.0 / c2)};
}

void Sgd::check() const {
  check_state("Sgd", param, {});
  if (momentum != 0) check_state("Sgd", param, {{"buffer", buffer}});
  check_gradient("Sgd", param, grad), check_copy("Sgd", param, copy);
}
CLEAVE_LAUNCH(Sgd)

SgdNumbers Sgd::numbers() const {
  return {.lr = lr,
          .momentum = momentum,
          .damp = 1.0f - dampening,
          .decay = weight_decay,
          .scale = grad_scale,
          .nesterov = nesterov,
          .first = first};
}

void Lion::check() const {
  check_state("Lion", param, {{"m", m}});
  check_gradient("Lion", param, grad), check_copy("Lion", param, copy);
}
CLEAVE_LAUNCH(Lion)

LionNumbers Lion::numbers() const {
  return {.averages = averages(*this), .lr = lr, .kept = 1.0f - lr * weight_decay, .scale = grad_scale};
}

void Adagrad::check() const {
  check_state("Adagrad", param, {{"sum", sum}});
  check_gradient("Adagrad", param, grad), check_copy("Adagrad", param, copy);
}
CLEAVE_LAUNCH(Adagrad)

AdagradNumbers Adagrad::numbers() const {
  return {.lr = lr, .eps = eps, .decay = weight_decay, .scale = grad_scale};
}

void LambMoments::check() const {
  check_state("LambMoments", param, {{"m", m}, {"v", v}});
  check_gradient("LambMoments", param, grad);
  Operand("LambMoments", "squares", squares).is(DType::fp64).numel(2);
}
CLEAVE_LAUNCH(LambMoments)

LambNumbers LambMoments::numbers() const {
  return {.averages = averages(*this), .eps = eps, .decay = weight_decay, .scale = grad_scale};
}

void LambStep::check() const {
  check_state("LambStep", param, {{"m", m}, {"v", v}});
  check_copy("LambStep", param, copy);
}
CLEAVE_LAUNCH(LambStep)

LambStepNumbers LambStep::numbers() const { return {.rate = rate, .eps = eps, .decay = weight_decay}; }

}  // namespace cleave::kernels
