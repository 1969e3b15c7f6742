// The working copy of what does not train, all units of a rank that trains nothing or those that are frozen:
// values go from a checkpoint into it, wherever it lives, and there are no masters and no optimizer state.
#pragma once
#include "zero/parameter_store.h"
#include "zero/saved_state.h"

namespace cleave::zero {

class WeightLoader final : public SavedState {
 public:
  // Loads these units, in rising order, after every one was added to the store. Takes memory only on a GPU.
  WeightLoader(Memory& memory, ParameterStore& store, std::vector<int> units);

  // Nothing is drawn: the weights in memory are zero, and those on disk are not defined, until they are
  // written.
  void initialize(uint64_t, Stream&) override {}
  std::vector<std::string> kinds() const override { return {"master"}; }
  // The working copy's values.
  void read(int unit, int kind, Range range, Tensor to, Stream& compute) override;
  // Rounds to the working copy's type. A unit leaves for the ranks that hold the whole, and for the disk,
  // when a later one begins, so the buffers on the way to the disk are enough for any number of units.
  // Collective where units are published.
  void write(int unit, int kind, Range range, Tensor from, Stream& compute) override;
  void begin_masters(int unit, Stream&) override { publish_before(unit); }
  void publish_masters(Stream& compute) override;
  Stream& host() {
    return host_;
  }  // for values on their way: what is given to it is done, or left out in a dry run

 private:
  void publish_before(int unit);
  // Calls move(where the host reads and writes the piece, the piece in the working copy, its range in
  // `weights`).
  template <class Move>
  void each_piece(Tensor weights, Move move);

  ParameterStore& store_;
  std::vector<int> units_;
  Buffer staging_;   // pinned: a piece of weights that the host cannot reach
  size_t next_ = 0;  // of units_: the first that was not published since the last publish_masters
  Stream host_;
};

}  // namespace cleave::zero
