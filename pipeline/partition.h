// Divides the layers into pipeline pieces: contiguous ranges, chosen by layer cost.
#pragma once
#include <span>

#include "core/range.h"
#include "pipeline/simulate.h"

namespace cleave::pipeline {

struct LayerCost {
  std::string name;  // name of its first unit: "h.3"
  int64_t params = 0;
  double flops = 0;    // of one micro-batch, forward and backward
  double bytes = 0;    // memory traffic of one micro-batch
  bool splits = true;  // supports a split backward
};

// Time in units of one FLOP, from arithmetic and memory traffic. Assumes ten FLOPs per byte, between a
// server's cores (5 in fp32, 20 in bf16); it only weighs layers against each other.
double work_of(const LayerCost& layer);

// Returns one nonempty range of layers per piece. The last piece includes the head's cost. Methods:
//   uniform       equal numbers of layers; the first pieces take one more
//   parameters    minimizes the largest number of parameters
//   type:REGEX    minimizes the largest number of layers with a matching name (POSIX extended, any case)
//   balanced      minimizes the largest work_of
//   3,4,4,3       explicit numbers of layers, one per piece
// Ties between equal largest pieces are resolved by the smallest sum of squares. Throws Error(usage) for
// another method, a list that does not fit, an invalid regular expression, or more pieces than layers.
std::vector<Range> partition_layers(std::span<const LayerCost> layers, const LayerCost& head, int pieces,
                                    const std::string& method);

// Relative work of each piece (mean 1).
std::vector<double> work_of_pieces(std::span<const LayerCost> layers, const LayerCost& head,
                                   std::span<const Range> pieces);

// Share of each piece's work in layers with a split backward; the head does not support one.
std::vector<double> split_shares(std::span<const LayerCost> layers, const LayerCost& head,
                                 std::span<const Range> pieces);

// One line with the layers of each piece and the expected idle share. If the simulated schedule splits
// backwards, also names the layers that do not support it.
std::string format_pipeline(const std::string& schedule, const ScheduleShape& shape,
                            std::span<const LayerCost> layers, const LayerCost& head,
                            std::span<const Range> pieces, const Simulation& simulated);

}  // namespace cleave::pipeline
