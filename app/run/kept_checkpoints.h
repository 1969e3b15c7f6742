// Selection of the checkpoints that a run keeps.
#pragma once
#include <cstdint>
#include <vector>

namespace cleave::app {

struct KeepRule {
  int64_t newest = 0;  // number of newest checkpoints to keep; 0: all
  int64_t every = 0;   // also keep multiples of this step; 0: none
};

// Returns the steps to remove when the checkpoint of step `saved` is complete, oldest first: all
// steps up to `saved` except the newest, the multiples and the `best` one (-1: none). Later steps
// exist after resuming an older checkpoint and stay until they are reached.
std::vector<int64_t> steps_to_let_go(std::vector<int64_t> steps, int64_t saved, int64_t best, KeepRule rule);

// Returns the largest number of checkpoints on disk at a time, including the one that is being
// written, for a run of `steps` that saves every `interval` steps and at its end (0: at its end
// only). Callers add one if the best checkpoint is kept.
int64_t most_checkpoints(int64_t steps, int64_t interval, KeepRule rule);

}  // namespace cleave::app
