// Sums over whole parameters with slices on many ranks, for optimizers that need norms per parameter.
#pragma once
#include <optional>
#include <vector>

#include "comm/mesh.h"
#include "zero/parameter_store.h"

namespace cleave::zero {

class WholeParameters {
 public:
  // Allocates two sums per parameter of the store on the device, and also in `second` memory if a second
  // stream updates state. The ranks of `cutting` must outlive this object.
  WholeParameters(Memory& memory, ParameterStore& store, std::vector<comm::CuttingAxis> cutting,
                  std::optional<MemoryKind> second);

  // clear sets all sums to zero. Then work on `first` and `second`, which may be the same stream, adds this
  // rank's parts to separate slots (fp64 [2]).
  void clear(Stream& first, Stream& second);
  Tensor slot(int unit, int param, bool second) const;
  // Adds the slots over the ranks that hold other parts of a parameter, in rank order, and waits. Padding
  // does not count. Collective.
  void add_up(Stream& first, Stream& second);
  std::array<double, 2> sums(int unit, int param) const;

 private:
  size_t index(int unit, int param) const { return 2 * (first_[size_t(unit)] + size_t(param)); }

  ParameterStore& store_;
  std::vector<comm::CuttingAxis> cutting_;
  std::vector<size_t> first_;  // of each unit's parameters
  std::vector<int64_t> ends_;  // of each unit's sums
  Buffer first_sums_, second_sums_;
  std::vector<double> sums_;
  std::vector<AxisSet> cut_by_;  // axes that cut the parameter, by element of sums_
};

}  // namespace cleave::zero
