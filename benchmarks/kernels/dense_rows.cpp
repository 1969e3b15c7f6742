#include "benchmarks/kernels/rows.h"
#include "kernels/dense.h"

namespace cleave::benchmarks {

// The MLP of GPT-2 124M; beside the same products alone (matmul/up, matmul/down) they show what an epilogue
// costs.
void add_dense(Device device, DType type) {
  const int64_t rows = device.is_cuda() ? 32768 : 1024, width = 768, wide = 4 * width;
  const std::string suffix = fmt::format("/{}", name_of(type));
  add_row(device, "dense/up_gelu/forward" + suffix, [=](Operands& o) {
    const kernels::DenseActivation op{.y = o.make(type, {rows, wide}),
                                      .hidden = o.make(type, {rows, wide}),
                                      .x = o.make(type, {rows, width}),
                                      .weight = o.make(type, {wide, width}),
                                      .bias = o.make(type, {wide})};
    return o.work(op, 0, op.flops());
  });
  add_row(device, "dense/down_gelu/dx" + suffix, [=](Operands& o) {
    const kernels::DenseActivationGradient op{.dhidden = o.make(type, {rows, wide}),
                                              .dy = o.make(type, {rows, width}),
                                              .weight = o.make(type, {width, wide}),
                                              .hidden = o.make(type, {rows, wide})};
    return o.work(op, 0, op.flops());
  });
  add_row(device, "dense/up_bias/dw" + suffix, [=](Operands& o) {
    const kernels::DenseWeightGradient op{.dweight = o.make(DType::fp32, {wide, width}),
                                          .dbias = o.make(DType::fp32, {wide}),
                                          .dy = o.make(type, {rows, wide}),
                                          .x = o.make(type, {rows, width}),
                                          .accumulate_weight = true};
    return o.work(op, 0, op.flops());
  });
}

}  // namespace cleave::benchmarks
