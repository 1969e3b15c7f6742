// Dropout of rows that axes may cut.
#pragma once
#include "model/axes.h"
#include "model/layer.h"

namespace cleave::model {

// The random numbers of a dropout in a step: a function of it and of `where` in the model.
Philox dropout_numbers(const Position& at, std::string_view where);

// The dropout of this rank's rows of a micro-batch. An element has the number of its index in the global
// batch, so the mask is the same however rows are cut.
struct RowDropout {
  float p = 0;
  int64_t seq = 1;  // positions of a whole sample
  Axes axes = {};

  // y = x dropped; y may be x. Both [rows, width]. Does nothing when p is 0.
  void run(Tensor y, Tensor x, const Position& at, std::string_view where, Stream& stream) const;
};

}  // namespace cleave::model
