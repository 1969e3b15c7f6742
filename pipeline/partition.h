// Which layers go into which piece of the pipeline: contiguous ranges, chosen by what a layer costs.
#pragma once
#include <span>

#include "core/range.h"
#include "pipeline/simulate.h"

namespace cleave::pipeline {

struct LayerCost {
  std::string name;  // "h.3": of its first unit
  int64_t params = 0;
  double flops = 0;    // of one micro-batch, forward and backward
  double bytes = 0;    // read and written for it
  bool splits = true;  // its backward can do the weights' part apart from the input's
};

// Time in units of one FLOP: products run at the processor's arithmetic speed, bytes at its memory's. Ten
// FLOPs a byte is between a server's cores (5 in fp32, 20 in bf16) and only weighs layers against each other.
double work_of(const LayerCost& layer);

// One range of layers a piece, none empty. The head's cost is counted in the last piece. Methods:
//   uniform       as many layers each; the first pieces take one more
//   parameters    the largest number of parameters as small as possible
//   type:REGEX    the same for the number of layers whose name matches (POSIX extended, any case)
//   balanced      the same for work_of
//   3,4,4,3       as many layers as listed, one number a piece
// Among equal largest pieces the sum of squares decides. Error(usage) for another method, a list that does
// not fit, a bad regular expression, or more pieces than layers.
std::vector<Range> partition_layers(std::span<const LayerCost> layers, const LayerCost& head, int pieces,
                                    const std::string& method);

// The relative work of each piece (mean 1).
std::vector<double> work_of_pieces(std::span<const LayerCost> layers, const LayerCost& head,
                                   std::span<const Range> pieces);

// For each piece the share of its work that layers do whose backward can be split; the head's cannot.
std::vector<double> split_shares(std::span<const LayerCost> layers, const LayerCost& head,
                                 std::span<const Range> pieces);

// One line: who has what, and the idle share to expect. Where the simulated schedule splits backwards, it
// also says which layers cannot.
std::string format_pipeline(const std::string& schedule, const ScheduleShape& shape,
                            std::span<const LayerCost> layers, const LayerCost& head,
                            std::span<const Range> pieces, const Simulation& simulated);

}  // namespace cleave::pipeline
