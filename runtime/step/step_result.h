// Results of a step, and descriptions of an engine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::runtime {

struct StepResult {
  int64_t step = 0;       // 1-based, including skipped steps
  double loss = 0;        // mean over the targets of all ranks' micro-batches, or as set by
                          // cleave.loss_average
  double grad_norm = 0;   // of the averaged, unscaled gradient before clipping
  double lr = 0;          // used by this step
  double loss_scale = 1;  // used by this step
  bool skipped = false;   // a gradient overflowed on some rank: only the loss scale changed
  int64_t skipped_total = 0;
  // Reason of a skipped step with values that are not finite or a loss spike (cleave.non_finite,
  // cleave.loss_spike); otherwise empty.
  std::string bad = {};
};

// A micro-batch of a step, counted from 0.
struct MicroPlace {
  int rank = 0;
  int64_t micro = 0;
};

// Messages about an engine at the start of a run, for users. Empty if not of interest.
struct EngineNotes {
  std::string pipeline;  // the ranks' parts of the model, and the expected idle share
  std::string disk;      // location and speed of state on disk
  std::string update;    // reason for the update side of offloaded state
  std::string graphs;    // use of CUDA graphs

  std::vector<std::string> lines() const;  // returns the nonempty messages
};

}  // namespace cleave::runtime
