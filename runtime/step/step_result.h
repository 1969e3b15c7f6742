// What an engine says of a step, and of itself.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::runtime {

struct StepResult {
  int64_t step = 0;       // 1-based, counts skipped steps too
  double loss = 0;        // mean over the targets of all ranks' micro-batches, or as cleave.loss_average says
  double grad_norm = 0;   // of the averaged, unscaled gradient before clipping
  double lr = 0;          // used by this step
  double loss_scale = 1;  // used by this step
  bool skipped = false;   // a gradient overflowed somewhere: no state changed, only the loss scale
  int64_t skipped_total = 0;
};

// What a run has to say of itself at its start, for people. A text is empty where nobody would ask.
struct EngineNotes {
  std::string pipeline;  // which rank has what of the model, and the idle share to expect
  std::string disk;      // where state on disk is, and how fast that is
  std::string update;    // why offloaded state is updated where it is
  std::string graphs;    // whether passes are CUDA graphs

  std::vector<std::string> lines() const;  // of those that are not empty
};

}  // namespace cleave::runtime
