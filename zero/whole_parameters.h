// Sums over whole parameters that lie in slices on many ranks, for optimizers whose update depends on them.
#pragma once
#include <vector>

#include "zero/parameter_store.h"

namespace cleave {

class WholeParameters {
 public:
  // Two sums a parameter of the store, on the device and, where the host updates state of a GPU rank, in
  // pinned memory. tensor: the ranks that have other parts of what is split.
  WholeParameters(Memory& memory, ParameterStore& store, Communicator& tensor, bool host);

  // Sets all sums to zero; then work of `device` and `host` adds this rank's parts to places (fp64 [2]).
  void clear(Stream& device, Stream& host);
  Tensor place(int unit, int param, bool host) const;
  // Adds up over the ranks that have other parts of a parameter, in rank order, and waits: what is padding is
  // on no rank and counts nowhere. Collective.
  void add_up(Stream& device, Stream& host);
  std::array<double, 2> sums(int unit, int param) const;

 private:
  size_t index(int unit, int param) const { return 2 * (first_[size_t(unit)] + size_t(param)); }

  ParameterStore& store_;
  Communicator& tensor_;
  std::vector<size_t> first_;  // of each unit's parameters
  Buffer device_, host_;
  std::vector<double> sums_;
  std::vector<bool> split_;  // by element of sums_
};

}  // namespace cleave
