// How layers are cut: all that a model is told of the ranks that compute it together.
#pragma once
#include "sequence_parallel/sequence_axis.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave {

struct Axes {
  Axes() = default;  // a rank alone
  Axes(TensorAxis the_tensor, SequenceAxis the_sequence = {}) : tensor(the_tensor), sequence(the_sequence) {}

  TensorAxis tensor;      // heads, columns and vocabulary
  SequenceAxis sequence;  // positions
};

}  // namespace cleave
