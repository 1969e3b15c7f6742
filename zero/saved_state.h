// Interface for the model state that a rank saves and loads: named fp32 values over its slices
// (ParameterStore::slice), and the words of units that are not numbers (UnitSpec::word).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/range.h"
#include "device/stream.h"

namespace cleave::zero {

class SavedState {
 public:
  virtual ~SavedState() = default;
  // Sets the initial values, before anything is loaded.
  virtual void initialize(uint64_t seed, Stream& compute) = 0;

  // Names of the values that a checkpoint saves: "master", then the optimizer's state names. A frozen unit
  // has only "master".
  virtual std::vector<std::string> kinds() const = 0;
  // Copies elements of one kind, relative to the slice's begin, to or from fp32 host memory after the work on
  // `compute`, and waits; the elements of a unit with words to or from int64. A loader writes units in
  // ascending order.
  virtual void read(int unit, int kind, Range range, Tensor to, Stream& compute) = 0;
  virtual void write(int unit, int kind, Range range, Tensor from, Stream& compute) = 0;
  // Declares that the next masters that any rank writes belong to this unit. Collective: earlier units may be
  // sent to the ranks that hold the whole unit. For loaders that synchronize the ranks between writes;
  // without this call the writes do it.
  virtual void begin_masters(int unit, Stream& compute) = 0;
  // Brings all written masters to the working copy on every rank. Collective.
  virtual void publish_masters(Stream& compute) = 0;
};

}  // namespace cleave::zero
