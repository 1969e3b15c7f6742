// Loads checkpoint values directly into the working copy of units that do not train: all units in inference,
// or frozen ones. These have no masters and no optimizer state.
#pragma once
#include "zero/parameter_store.h"
#include "zero/saved_state.h"

namespace cleave::zero {

class WeightLoader final : public SavedState {
 public:
  // Loads these units, in ascending order. Create after all units were added to the store. Allocates memory
  // only on a GPU.
  WeightLoader(Memory& memory, ParameterStore& store, std::vector<int> units);

  // Draws no initial values: weights in memory are zero and weights on disk are undefined until written.
  void initialize(uint64_t, Stream&) override {}
  std::vector<std::string> kinds() const override { return {"master"}; }
  // Reads values of the working copy.
  void read(int unit, int kind, Range range, Tensor to, Stream& compute) override;
  // Rounds to the type of the working copy. A unit is published to the ranks that hold the whole, and to
  // disk, when a later one begins, so a fixed number of disk buffers suffices. Collective if units are
  // published.
  void write(int unit, int kind, Range range, Tensor from, Stream& compute) override;
  void begin_masters(int unit, Stream&) override { publish_before(unit); }
  void publish_masters(Stream& compute) override;
  Stream& host() {
    return host_;
  }  // stream for values in transit: its work is done immediately, or skipped in a dry run

 private:
  void publish_before(int unit);
  // Calls move(host-accessible memory of the piece, the piece in the working copy, its range in `weights`).
  template <class Move>
  void each_piece(Tensor weights, Move move);

  ParameterStore& store_;
  std::vector<int> units_;
  Buffer staging_;   // pinned memory for a piece of weights that the host cannot access
  size_t next_ = 0;  // index into units_: the first unit not published since the last publish_masters
  Stream host_;
};

}  // namespace cleave::zero
