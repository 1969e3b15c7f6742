#include "zero/whole_parameters.h"

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave::zero {

WholeParameters::WholeParameters(Memory& memory, ParameterStore& store,
                                 std::vector<comm::CuttingAxis> cutting, std::optional<MemoryKind> second)
    : store_(store), cutting_(std::move(cutting)) {
  size_t params = 0;
  for (int u = 0; u < store.units(); ++u) {
    const FlatLayout& layout = store.layout(u);
    first_.push_back(params);
    params += size_t(layout.params());
    ends_.push_back(int64_t(2 * params));
    for (int p = 0; p < layout.params(); ++p) cut_by_.insert(cut_by_.end(), 2, layout.param(p).cut_by());
  }
  const Shape shape{int64_t(2 * params)};
  auto allocate = [&](MemoryKind kind) {
    return memory.allocate(kind, Category::staging, DType::fp64, shape, "norms of parameters");
  };
  first_sums_ = allocate(MemoryKind::device);
  if (second) second_sums_ = allocate(*second);
}

void WholeParameters::clear(Stream& first, Stream& second) {
  kernels::launch(kernels::Fill{.y = first_sums_}, first);
  if (second_sums_.defined()) kernels::launch(kernels::Fill{.y = second_sums_}, second);
}

Tensor WholeParameters::slot(int unit, int param, bool second) const {
  const auto at = int64_t(index(unit, param));
  return (second && second_sums_.defined() ? second_sums_ : first_sums_).tensor().slice({at, at + 2});
}

void WholeParameters::add_up(Stream& first, Stream& second) {
  sums_ = to_host<double>(first_sums_, first);
  if (second_sums_.defined()) {
    const std::vector<double> there = to_host<double>(second_sums_, second);
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += there[i];
  }
  auto all = [](std::vector<double>& values) {
    return Tensor(values.data(), DType::fp64, {int64_t(values.size())}, MemoryKind::host);
  };
  store_.sum_over_slices(all(sums_), ends_, "norms of parameters", false);
  first.synchronize();
  for (const comm::CuttingAxis& axis : cutting_) {
    if (axis.ranks->size() == 1) continue;
    std::vector<double> parts = sums_;
    axis.ranks->all_reduce(all(parts), first, {.what = "norms of parameters"});
    first.synchronize();
    for (size_t i = 0; i < parts.size(); ++i)
      if (cut_by_[i].has(axis.axis)) sums_[i] = parts[i];
  }
}

std::array<double, 2> WholeParameters::sums(int unit, int param) const {
  const size_t at = index(unit, param);
  return {sums_[at], sums_[at + 1]};
}

}  // namespace cleave::zero
