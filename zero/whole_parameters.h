// Sums over whole parameters that lie in slices on many ranks, for optimizers whose update depends on them.
#pragma once
#include <optional>
#include <vector>

#include "comm/mesh.h"
#include "zero/parameter_store.h"

namespace cleave::zero {

class WholeParameters {
 public:
  // Two sums a parameter of the store, on the device and, where a second stream updates state as well, in
  // memory that it reaches. The ranks of `cutting` outlive this.
  WholeParameters(Memory& memory, ParameterStore& store, std::vector<comm::CuttingAxis> cutting,
                  std::optional<MemoryKind> second);

  // Sets all sums to zero; then work of `first` and `second`, which may be the same, adds this rank's parts
  // to slots of its own (fp64 [2]).
  void clear(Stream& first, Stream& second);
  Tensor slot(int unit, int param, bool second) const;
  // Adds up over the ranks that have other parts of a parameter, in rank order, and waits: what is padding is
  // on no rank and counts nowhere. Collective.
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
  std::vector<AxisSet> cut_by_;  // the parameter, by element of sums_
};

}  // namespace cleave::zero
