#include "zero/whole_parameters.h"

#include "device/copy.h"
#include "kernels/elementwise.h"

namespace cleave {

WholeParameters::WholeParameters(Memory& memory, ParameterStore& store, Communicator& tensor, bool host)
    : store_(store), tensor_(tensor) {
  size_t params = 0;
  for (int u = 0; u < store.units(); ++u) {
    const FlatLayout& layout = store.layout(u);
    first_.push_back(params);
    params += size_t(layout.params());
    for (int p = 0; p < layout.params(); ++p) split_.insert(split_.end(), 2, bool(layout.param(p).split));
  }
  const Shape shape{int64_t(2 * params)};
  device_ = memory.allocate(MemoryKind::device, Category::staging, DType::fp64, shape, "norms of parameters");
  if (host)
    host_ = memory.allocate(MemoryKind::pinned, Category::staging, DType::fp64, shape, "norms of parameters");
}

void WholeParameters::clear(Stream& device, Stream& host) {
  launch(Fill{.y = device_}, device);
  if (host_.defined()) launch(Fill{.y = host_}, host);
}

Tensor WholeParameters::place(int unit, int param, bool host) const {
  const auto at = int64_t(index(unit, param));
  return (host && host_.defined() ? host_ : device_).tensor().slice({at, at + 2});
}

void WholeParameters::add_up(Stream& device, Stream& host) {
  sums_ = to_host<double>(device_, device);
  if (host_.defined()) {
    const std::vector<double> there = to_host<double>(host_, host);
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += there[i];
  }
  auto all = [](std::vector<double>& values) {
    return Tensor(values.data(), DType::fp64, {int64_t(values.size())}, MemoryKind::host);
  };
  store_.sum_over_slices(all(sums_), "norms of parameters", false);
  device.synchronize();
  if (tensor_.size() == 1) return;
  std::vector<double> parts = sums_;
  for (size_t i = 0; i < parts.size(); ++i)
    if (!split_[i]) parts[i] = 0;
  tensor_.all_reduce(all(parts), device, {.what = "norms of parameters"});
  device.synchronize();
  for (size_t i = 0; i < parts.size(); ++i)
    if (split_[i]) sums_[i] = parts[i];
}

std::array<double, 2> WholeParameters::sums(int unit, int param) const {
  const size_t at = index(unit, param);
  return {sums_[at], sums_[at + 1]};
}

}  // namespace cleave
