// What a layer remembers from step to step beside its parameters, and no gradient changes: a running maximum,
// how many tokens an expert has seen. It has a lasting part, which every pass of a step reads and none
// writes, and a part in which the layer notes what it sees in the step. At the end of a step the seen parts
// of all micro-batches and ranks of the data axis (those that share sequences, too) are one value, and
// Layer::join brings it into the lasting part; ranks of a tensor axis that does not cut rows have to see the
// same. A step that is skipped for an overflow joins nothing.
#pragma once
#include <string>
#include <vector>

#include "core/reduction.h"
#include "device/tensor.h"

namespace cleave::model {

struct LayerState {
  std::string name;            // in checkpoints; no other state of the model has it
  std::vector<int64_t> shape;  // of both parts; {1}: a single value
  // Both parts have this type. int64: what is counted, with sums and maxima that are exact, and so the same
  // in every layout.
  DType dtype = DType::fp32;
  // How what ranks have seen becomes one. A step begins with a seen part of zeros, or for max of what is
  // smaller than all: -infinity, the smallest int64.
  Reduction by = Reduction::sum;
  double begin = 0;   // of every lasting element, before the first step; of int64 a whole number
  bool saved = true;  // with checkpoints, for any layout
  // Ranks of a tensor axis see different columns, and what they have seen is reduced as well.
  bool sees_columns = false;
  // It begins anew where a checkpoint is of a training without it.
  bool may_be_missing = false;
};

// Views of one state's parts, each with its shape.
struct StateViews {
  Tensor lasting;
  // Defined in a training micro-batch's first forward, not where that runs again for a backward, nor in an
  // evaluation; in its backward, but for the part of the weights alone; and in join. The layer adds to it, or
  // takes the larger.
  Tensor seen = {};
};

}  // namespace cleave::model
