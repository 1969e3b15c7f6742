// Copies a rank's state to StateCopies during the passes of a step, on a separate thread: masters, optimizer
// state and layer state, which change in the update only.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/workspace.h"
#include "runtime/step/computation.h"
#include "runtime/step/rank_state.h"
#include "runtime/step/state_copies.h"

namespace cleave::runtime {

class StateCopier {
 public:
  // All must outlive this; destroy it before the streams of the rank. A dry memory counts the copies without
  // `to`.
  StateCopier(const Settings& settings, RankState& rank, Computation& computes, Memory& memory,
              StateCopies* to);

  // Begins the copy of the state after `step` steps. Nothing may change the state before finish().
  void begin(int64_t step, std::string text);
  // Waits for the copy and throws its errors.
  void finish() { worker_.synchronize(); }
  // Writes the state of a complete copy to the rank, without publishing masters, and returns its text.
  // Collective.
  std::string restore(int64_t step);

 private:
  struct Kept {
    checkpoint::Record record;
    int64_t at;   // in a copy
    bool frozen;  // never changes
  };

  StateCopies* const copies_;
  Workspace scratch_;
  Stream reads_;
  std::vector<Kept> kept_;
  Buffer counted_;
  Stream worker_;  // destroyed first
};

}  // namespace cleave::runtime
