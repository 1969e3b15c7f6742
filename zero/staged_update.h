// Runs an optimizer's kernels on one side of a rank, host or device, with operands on the other side.
// Operands pass in pieces through memory of this side: one stream reads ahead of the kernels, another writes
// back after them. Slices of different units follow each other without a wait: while one piece is updated,
// the next arrives and the previous one leaves.
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
  static constexpr int64_t kPiece = int64_t{1} << 20;  // maximum elements

  // Operands on the other side: the number of kinds (the master and the states after it), and the types of
  // gradients and working copies.
  struct Travels {
    int kinds = 0;
    std::optional<DType> gradients = {}, weights = {};
  };
  // Allocates staging buffers of at most `largest` elements each in this side's memory.
  StagedUpdate(Memory& memory, offload::UpdateSide side, const Travels& travels, int64_t largest);

  // Makes later work start after the event.
  void wait(const Event& event);
  // Begins a walk over the slices. Its reads see everything written back before; call before a slice is used
  // again.
  void begin_walk();
  // Runs kernels on pieces of the slice. Operands may be on either side, or undefined. Of the master and
  // states, the kinds in `read` are loaded and those in `written` are stored; grad is read and copy is
  // written. `range` is the piece's range in the slice. The returned event marks the slice as unused and
  // completely written.
  using Kernels = std::function<void(const optim::UpdateSlice& piece, Range range, Stream& stream)>;
  Event run(const Kernels& kernels, const optim::UpdateSlice& slice, Range read, Range written);

  // The last kernels that run() enqueued. A waiter of this event receives their errors, even if it also has
  // to wait for the transfer of the results.
  const Event& worked() const { return worked_; }

  void show_in(Trace& trace);         // traces kernels and transfers
  Stream& stream() { return work_; }  // stream of the kernels
  void synchronize();

 private:
  static constexpr size_t kSlots = 3;  // one arrives, one is updated, one leaves
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
  Stream work_, in_, out_;  // destroyed first: they finish enqueued work
};

}  // namespace cleave::zero
