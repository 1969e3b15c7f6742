#include "bench/kernel_rows.h"
#include "bench/limits.h"
#include "kernels/cpu/bf16_products.h"

namespace cleave::bench {
namespace {

Visit visit(const Work& work, std::vector<Bound> bounds, double seconds) {
  const bool arithmetic = work.flops > 0;
  return {.rate = (arithmetic ? work.flops : work.bytes) * 1e-9 / fastest(work.run, seconds),
          .unit = arithmetic ? "GFLOP/s" : "GB/s",
          .bounds = std::move(bounds)};
}

}  // namespace

std::vector<Subject> subjects_of(const KernelRow& kernel, double seconds) {
  const std::string library = kernel.name + "/oneDNN";
  const auto product_bounds = [=, type = kernel.type] {
    std::vector<Bound> bounds = flops_bounds(type);
    bounds.push_back({library, "oneDNN's best"});
    return bounds;
  };
  std::vector<Subject> subjects{
      {kernel.name, [=] {
         Operands operands{Device{}};
         const Work work = kernel.prepare(operands);
         return visit(work, work.flops > 0 ? product_bounds() : bytes_bounds(work.reads_only), seconds);
       }}};
  using kernels::cpu::Bf16Way;
  const bool librarys = kernel.type == DType::bf16 && kernels::cpu::bf16_products().way == Bf16Way::onednn;
  if (kernel.by_onednn && !librarys)
    subjects.push_back({library, [=] {
                          Operands operands{Device{}};
                          return visit(kernel.by_onednn(operands), product_bounds(), seconds);
                        }});
  return subjects;
}

}  // namespace cleave::bench
