// Finds the first value of a failed step that is not finite: a weight before the step, a loss, or a gradient.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "runtime/step/rank_state.h"
#include "runtime/step/ranks.h"
#include "runtime/step/step_result.h"

namespace cleave::runtime {

struct FailedStep {
  std::span<const double> squares;  // squared gradient norm of each unit of the model, over all ranks
  std::span<const double>
      losses;  // terms of this rank's micro-batches, in their order, possibly several times
  int64_t micros = 1;
  DType dtype = DType::fp32;  // of the weights
  bool has_updates = false;   // some weights are updated already, so wrong ones say nothing
};

struct NotFinite {
  std::string text;                      // a clause for a message
  std::optional<MicroPlace> micro = {};  // of the loss
};

// Returns the same on every rank. Weights and gradients are compared in the order of the
// model: passes carry a wrong weight forward, and the backward carries a wrong gradient to all units before,
// so the last wrong one is named. Reads weights through host memory. Collective.
NotFinite first_not_finite(RankState& rank, Ranks& ranks, const FailedStep& step, Stream& compute);

}  // namespace cleave::runtime
