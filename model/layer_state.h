// State that a layer keeps between steps in addition to its parameters, without gradients: a running maximum,
// or the number of tokens that an expert has seen. The lasting part is read-only during a step. In the seen
// part the layer records data of the step. At the end of a step the seen parts of all micro-batches and ranks
// of the data axis (including ranks that share sequences) are reduced, and Layer::join merges the result into
// the lasting part. Ranks of a tensor axis that does not cut rows must see the same data. A step skipped for
// an overflow does not join.
#pragma once
#include <string>
#include <vector>

#include "core/reduction.h"
#include "device/tensor.h"

namespace cleave::model {

struct LayerState {
  std::string name;            // in checkpoints; unique in the model
  std::vector<int64_t> shape;  // of both parts; {1}: a single value
  // Type of both parts. int64: for counts; sums and maxima are exact, and so equal in every layout.
  DType dtype = DType::fp32;
  // Reduction over ranks. At the start of a step the seen part is zero, or for max the smallest value:
  // -infinity, or the smallest int64.
  Reduction by = Reduction::sum;
  double begin = 0;   // initial value of every lasting element; an integer for int64
  bool saved = true;  // in checkpoints, for any layout
  // Ranks of a tensor axis see different columns, and their seen parts are reduced as well.
  bool sees_columns = false;
  // Starts from `begin` if a checkpoint comes from a training without it.
  bool may_be_missing = false;
};

// Views of one state's parts, each with its shape.
struct StateViews {
  Tensor lasting;
  // Defined in the first forward of a training micro-batch (not in recomputation or evaluation), in its
  // backward except the weight part, and in join. The layer adds to it, or takes the maximum.
  Tensor seen = {};
};

}  // namespace cleave::model
