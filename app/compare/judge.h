// Decides whether two recorded runs trained the same, up to rounding. The second run followed the first, so
// each step is compared on its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "app/run/run_record.h"

namespace cleave::app {

// A quantity with its largest share of the allowed difference. Gradients and updates are compared by the L2
// norm of the difference, relative to the norm in the first run.
struct Compared {
  std::string where;   // "gradient of h.0.attn.qkv.weight"
  std::string values;  // of a rate or a loss: "5.527 and 5.528"
  int64_t step = 0;
  double difference = 0, allowed = 0;
  bool same() const { return difference <= allowed; }
};

struct Verdict {
  // Of all steps: the rate, the loss, gradients and updates, each the one closest to its limit.
  std::vector<Compared> closest;
  // Everything that differs, in the order of the computation: step by step; in a step the rate, the loss, the
  // gradients from the last layer to the first, updates and frozen weights.
  std::vector<Compared> different;
  std::string hint;  // likely cause; may be empty
  int64_t steps = 0, parameters = 0;
  int64_t skipped = 0;  // steps that all runs skipped: their gradients are not compared
};

// `moved` is the first run again, with each weight moved by rounding_of()
// (relative): the change that it causes in a gradient shows how far rounding alone may move it. The allowed
// differences follow from it:
//   gradient   8 x the largest change of this gradient in a step, but at least the median of all gradients
//   loss       8 x the larger of its change and rounding * sqrt(sum (w * dL/dw)^2), the change that a
//              first-order expansion gives
//   update     4 roundings of fp32 of the weights, and 64 of the update; 8 times the rounding of the gradient
//              type; with signs, the square root of the share of elements that a rounding may reverse
// each plus one rounding of fp32.
Verdict judge(const RunRecord& first, const RunRecord& second, const RunRecord& moved);
// Rounding of the coarser of two runs, for the third.
double rounding_of(const RunRecord& first, const RunRecord& second);

}  // namespace cleave::app
