// One transformer block of GPT-2: x -> x + attention(norm(x)) -> that + mlp(norm(that)).
#pragma once
#include "kernels/activation.h"
#include "model/gpt.h"

namespace cleave {

// Over a tensor axis each rank computes its heads and its part of the MLP for all rows; norms, dropout and
// residuals are computed where the rows are.
std::unique_ptr<Layer> make_gpt_block(const GptConfig& config, int64_t seq, int index,
                                      const TensorAxis& axis = {});

// The dropout of this rank's rows of a micro-batch. Random numbers are functions of the step, of `where` in
// the model and of the element's index in the global batch, so they are the same however rows are cut.
struct RowDropout {
  float p = 0;
  int64_t seq = 1;
  TensorAxis axis = {};

  // y = x dropped; y may be x. Both [rows, width]. Does nothing when p is 0.
  void run(Tensor y, Tensor x, const Position& at, std::string_view where, Stream& stream) const;
};

}  // namespace cleave
