// An optimizer's kernels on one side of a rank, the host or the device, with operands that live on the other.
// Those pass piece by piece through memory of this side: what is read comes ahead of the kernels on a stream
// of its own, what is written leaves behind them on another. Nothing waits between slices, whichever units
// they belong to: while one piece is worked on, the next arrives and the last one leaves.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "device/memory.h"
#include "device/trace.h"
#include "device/workspace.h"
#include "offload/placement.h"
#include "optim/optimizer.h"

namespace cleave::zero {

class StagedUpdate {
 public:
  static constexpr int64_t kPiece = int64_t{1} << 20;  // elements, at most

  // What may have its home on the other side: so many of the master and the states after it, and the types of
  // gradients and working copies.
  struct Travels {
    int kinds = 0;
    std::optional<DType> gradients = {}, weights = {};
  };
  // Staging buffers of at most `largest` elements each, in this side's memory.
  StagedUpdate(Memory& memory, offload::UpdateSide side, const Travels& travels, int64_t largest);

  // What is given from now on starts after the event.
  void wait(const Event& event);
  // And reads what was written back so far: before anything is given a second time.
  void begin_walk();
  // Runs kernels on pieces of the slice, whose operands may be on either side and undefined. Of the master
  // and its states the kernels find the kinds in `read` and those in `written` are kept; grad is read and
  // copy written. `range` is the piece's, of the slice. The event says that nothing of the slice is in use
  // any more and all of it is written.
  using Kernels = std::function<void(const optim::UpdateSlice& piece, Range range, Stream& stream)>;
  Event run(const Kernels& kernels, const optim::UpdateSlice& slice, Range read, Range written);

  // The last kernels that run() enqueued. Who waits for these hears what they failed with, also where it is
  // the results' way that it has to wait for.
  const Event& worked() const { return worked_; }

  void show_in(Trace& trace);         // kernels, and what comes and goes
  Stream& stream() { return work_; }  // where kernels run
  void synchronize();

 private:
  static constexpr size_t kSlots = 3;  // one arrives, one is worked on, one leaves
  struct Slot {
    std::array<Buffer, 1 + optim::kMostStates> state;
    Buffer gradient, weights;
    Event free;
  };
  Event run_piece(const Kernels& kernels, const optim::UpdateSlice& there, Range range, Range read,
                  Range written);

  offload::UpdateSide side_;
  int64_t piece_;
  std::array<Slot, kSlots> slots_;
  size_t next_ = 0;
  Event worked_;
  std::vector<Workspace> spaces_;
  Trace* trace_ = nullptr;
  Stream work_, in_, out_;  // go first: they finish what was enqueued
};

}  // namespace cleave::zero
