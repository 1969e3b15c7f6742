// Axes that cut layers: all information that a model has on the other ranks.
#pragma once
#include "tensor_parallel/sequence_axis.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave::model {

struct Axes {
  Axes() = default;  // single rank
  Axes(tensor_parallel::TensorAxis the_tensor, tensor_parallel::SequenceAxis the_sequence = {})
      : tensor(the_tensor), sequence(the_sequence) {}

  tensor_parallel::TensorAxis tensor;      // heads, columns and vocabulary
  tensor_parallel::SequenceAxis sequence;  // positions
};

}  // namespace cleave::model
