// The form that gradients have from the moment a layer has written one until the optimizer reads the sum, as
// a value: how a visit's gradient comes into the form, how two are added, what an update reads of it, and how
// its squares are summed. It owns these kernels and the state that they need; who adds gradients up asks it
// and knows no form by name. What a form costs in memory it says in elements, which whoever allocates counts.
#pragma once
#include <memory>
#include <vector>

#include "device/memory.h"
#include "zero/store_options.h"

namespace cleave::zero {

class GradientForm {
 public:
  // Floats, or multiples of a grid where the options ask for exact sums.
  static std::unique_ptr<GradientForm> of(const StoreOptions& options);
  virtual ~GradientForm() = default;

  // Set-up: allocates what the form itself keeps.
  virtual void commit(Memory&) {}
  // Once a step. unscale: what a visit's gradient is multiplied by on its way into the form.
  virtual void begin_step(double unscale, Stream& compute) = 0;

  // Elements of fp32 in which a visit writes so many gradients before they are in the form. 0: it writes the
  // sum itself, and encode is not called.
  virtual int64_t apart_numel(int64_t numel) const = 0;
  // sum = (adds ? sum : 0) + what a visit wrote apart.
  virtual void encode(Tensor sum, Tensor apart, bool adds, Stream& compute) const = 0;
  // sum += x, both in this form, on a stream that computes where both are.
  virtual void add(Tensor sum, Tensor x, Stream& stream) const = 0;

  // Elements of fp32 that an update needs to read so many gradients at a time. 0: it reads the sum itself,
  // and decode is not called.
  virtual int64_t decoded_numel(int64_t numel) const = 0;
  virtual void decode(Tensor gradient, Tensor sum, Stream& stream) const = 0;

  // Sums of squares: of each part of the gradients so many elements of this type, and behind those of all
  // parts some that are no part's. Those of several ranks are added element by element.
  virtual DType type_of_squares() const = 0;
  virtual int64_t squares_of_part() const = 0;
  virtual int64_t squares_of_all() const = 0;
  int64_t squares_numel(int64_t parts) const { return squares_of_part() * parts + squares_of_all(); }
  virtual void square(Tensor part_squares, Tensor sum, Stream& stream) const = 0;
  virtual void square_all(Tensor all_squares, Stream& compute) const = 0;
  // By part, from what the ranks' sums add up to; not a number where a gradient did not fit the form.
  virtual std::vector<double> squared_norms(Tensor squares, Stream& compute) const = 0;
};

}  // namespace cleave::zero
