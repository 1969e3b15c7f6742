#include "kernels/update.h"

#include "kernels/cpu/operands.h"

namespace cleave::kernels::cpu {
namespace {

float* floats(const Tensor& t) { return t.defined() ? t.as<float>() : nullptr; }

template <class Op>
auto args_of(const Op& op, const Tensor& first, const Tensor& second, const Tensor& copy,
             const Tensor& grad) {
  return UpdateArgs<decltype(op.numbers())>{.param = op.param.template as<float>(),
                                            .states = {floats(first), floats(second)},
                                            .copy = vec(copy),
                                            .grad = vec(grad),
                                            .numel = op.param.numel(),
                                            .with = op.numbers()};
}

}  // namespace

void run(const Adam& op) { adam(args_of(op, op.m, op.v, op.copy, op.grad)); }
void run(const Sgd& op) { sgd(args_of(op, op.momentum != 0 ? op.buffer : Tensor(), {}, op.copy, op.grad)); }
void run(const Lion& op) { lion(args_of(op, op.m, {}, op.copy, op.grad)); }
void run(const Adagrad& op) { adagrad(args_of(op, op.sum, {}, op.copy, op.grad)); }
void run(const LambMoments& op) {
  lamb_moments({args_of(op, op.m, op.v, {}, op.grad), op.squares.as<double>()});
}
void run(const LambStep& op) { lamb_step(args_of(op, op.m, op.v, op.copy, {})); }

}  // namespace cleave::kernels::cpu
