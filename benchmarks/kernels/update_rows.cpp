#include "benchmarks/kernels/rows.h"
#include "kernels/elementwise.h"
#include "kernels/update.h"

namespace cleave::benchmarks {

void add_updates(Device device) {
  const int64_t n = 100'000'000;
  for (const auto& [name, grad, copy] :
       {std::tuple{"fp32", DType::fp32, DType::fp32}, {"bf16_copy", DType::bf16, DType::bf16}})
    add_row(device, std::string("adamw/100M/") + name, [=, grad = grad, copy = copy](Operands& o) {
      const bool copied = copy != DType::fp32;
      const kernels::Adam op{.param = o.make(DType::fp32, {n}),
                             .m = o.make(DType::fp32, {n}, 0),
                             .v = o.make(DType::fp32, {n}, 0),
                             .copy = copied ? o.make(copy, {n}) : Tensor(),
                             .grad = o.make(grad, {n}),
                             .weight_decay = 0.1f};
      return o.work(op, double(n) * (24.0 + double(size_of(grad)) + (copied ? double(size_of(copy)) : 0.0)));
    });
  // So few that the first-level cache holds them: what the loop itself takes.
  if (!device.is_cuda())
    add_row(device, "adamw/2K/fp32", [](Operands& o) {
      const int64_t few = 2048;
      const kernels::Adam op{.param = o.make(DType::fp32, {few}),
                             .m = o.make(DType::fp32, {few}, 0),
                             .v = o.make(DType::fp32, {few}, 0),
                             .copy = Tensor(),
                             .grad = o.make(DType::fp32, {few}),
                             .weight_decay = 0.1f};
      return o.work(op, double(few) * 28.0);
    });
  add_row(device, "sgd_momentum/100M/fp32", [=](Operands& o) {
    return o.work(kernels::Sgd{.param = o.make(DType::fp32, {n}),
                               .buffer = o.make(DType::fp32, {n}, 0),
                               .grad = o.make(DType::fp32, {n}),
                               .momentum = 0.9f,
                               .first = false},
                  double(n) * 20.0);
  });
  add_row(device, "lion/100M/bf16_copy", [=](Operands& o) {
    return o.work(kernels::Lion{.param = o.make(DType::fp32, {n}),
                                .m = o.make(DType::fp32, {n}, 0),
                                .copy = o.make(DType::bf16, {n}),
                                .grad = o.make(DType::bf16, {n})},
                  double(n) * 20.0);
  });
  add_row(device, "random_normal/10M", [=](Operands& o) {
    return o.work(kernels::RandomFill{.y = o.make(DType::fp32, {n / 10}), .philox = {1, 2}},
                  double(n / 10) * 4.0);
  });
}

}  // namespace cleave::benchmarks
