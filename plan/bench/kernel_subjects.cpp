#include <fmt/format.h>

#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/onednn.h"
#include "plan/bench/kernel_rows.h"
#include "plan/bench/limits.h"

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
  using kernels::cpu::Bf16Way;
  const bool librarys = kernel.type == DType::bf16 && kernels::cpu::bf16_products().way == Bf16Way::onednn;
  const bool beside = kernel.by_onednn && !librarys && kernels::cpu::onednn_multiplies(kernel.type);
  const std::string library = kernel.name + "/oneDNN";
  const auto product_bounds = [=, type = kernel.type] {
    std::vector<Bound> bounds = flops_bounds(type);
    if (beside) bounds.push_back({library, "oneDNN's best"});
    return bounds;
  };
  std::vector<Subject> subjects{
      {kernel.name, [=] {
         Operands operands{Device{}};
         const Work work = kernel.prepare(operands);
         return visit(work, work.flops > 0 ? product_bounds() : bytes_bounds(work.reads_only), seconds);
       }}};
  if (beside)
    subjects.push_back({library, [=] {
                          Operands operands{Device{}};
                          return visit(kernel.by_onednn(operands), product_bounds(), seconds);
                        }});
  return subjects;
}

std::string missing_rows() {
  if (kernels::cpu::onednn_multiplies(DType::bf16)) return {};
  return fmt::format(
      "oneDNN {} does not support bf16 products on this CPU: rows .../bf16/oneDNN are skipped\n",
      kernels::cpu::onednn_ability().version);
}

}  // namespace cleave::bench
