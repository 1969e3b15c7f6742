// Which checkpoints of a run stay.
#pragma once
#include <cstdint>
#include <vector>

namespace cleave::app {

struct KeepRule {
  int64_t newest = 0;  // so many stay, whatever their steps; 0: all
  int64_t every = 0;   // and those of steps that are its multiples; 0: none
};

// Chooses, among the steps whose checkpoints this run has, those that go once the one of step `saved` is
// whole, oldest first: all up to `saved` but the newest, the multiples and the `best` one (-1: none). Those
// of later steps are there when an older one was resumed, and stay until they are reached.
std::vector<int64_t> steps_to_let_go(std::vector<int64_t> steps, int64_t saved, int64_t best, KeepRule rule);

// How many stand side by side at most, the one that is being written among them, in a run of so many steps
// that saves every `interval` of them and at its end (0: at its end only). One more where the best one is
// kept, too.
int64_t most_checkpoints(int64_t steps, int64_t interval, KeepRule rule);

}  // namespace cleave::app
