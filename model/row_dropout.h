// Dropout of rows that axes may cut.
#pragma once
#include "model/axes.h"
#include "model/layer.h"

namespace cleave::model {

// Returns the random numbers of a dropout in a step, a function of the step and of `where` in the model.
Philox dropout_numbers(const Position& at, std::string_view where);

// Dropout of this rank's rows of a micro-batch. Each element's number depends on its index in the global
// batch, so the mask is independent of the cut.
struct RowDropout {
  float p = 0;
  int64_t seq = 1;  // positions of a whole sample
  Axes axes = {};

  // y = dropout(x); y may be x. Both [rows, width]. Does nothing if p is 0.
  void run(Tensor y, Tensor x, const Position& at, std::string_view where, Stream& stream) const;
};

}  // namespace cleave::model
