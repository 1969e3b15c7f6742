// What a rank saves and loads of a model: named fp32 values over its slices (ParameterStore::slice).
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
  // Gives every value what it has before anything is loaded.
  virtual void initialize(uint64_t seed, Stream& compute) = 0;

  // What a checkpoint saves: "master", then an optimizer's state names. Of a frozen unit there is only the
  // first.
  virtual std::vector<std::string> kinds() const = 0;
  // Copies elements of one of them, relative to the slice's begin, to or from fp32 memory of the host after
  // the work on `compute`, and waits. A loader writes units in their order.
  virtual void read(int unit, int kind, Range range, Tensor to, Stream& compute) = 0;
  virtual void write(int unit, int kind, Range range, Tensor from, Stream& compute) = 0;
  // The next master that any rank writes is of this unit. Collective: what was written before may leave for
  // the ranks that hold the whole. For a loader that lets ranks meet between its writes; without it, that
  // happens in the writes.
  virtual void begin_masters(int unit, Stream& compute) = 0;
  // After the masters were written: brings them to the working copy on every rank. Collective.
  virtual void publish_masters(Stream& compute) = 0;
};

}  // namespace cleave::zero
