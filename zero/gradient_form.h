// Representation of gradients from the time a layer writes them until the optimizer reads the sum: conversion
// of a visit's gradient, addition, conversion for the update, and sums of squares. Owns these kernels and
// their state; callers do not depend on a concrete form. Memory needs are reported in elements, and the
// caller allocates them.
//
// A form may replace the collective sum by another one, for example signs with error feedback. It receives
// the ranks and the state that it keeps for each sum between steps.
#pragma once
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "device/memory.h"
#include "zero/store_options.h"

namespace cleave::zero {

class GradientForm {
 public:
  // Memory of one sum of gradients over ranks, in addition to its operands. kept: persists between steps,
  // initially zero. travelling: device bytes that successive sums share.
  struct Needs {
    struct Kept {
      MemoryKind home = MemoryKind::device;
      Category category = Category::optimizer_state;
      DType dtype = DType::fp32;
      int64_t numel = 0;
    } kept = {};
    int64_t travelling = 0;
  };
  // One sum of a unit's gradients over more than one rank, with the memory that the form requested.
  // Checkpoints do not contain `kept`: a resumed run starts with zeros.
  struct Crossed {
    comm::Communicator& ranks;
    Tensor sum, terms;  // sum of the terms of all ranks; terms have the wire type
    Tensor kept, travelling;
    const comm::Call& call;
  };

  // Returns the floating-point form, or multiples of a grid if the options request exact sums.
  static std::unique_ptr<GradientForm> of(const StoreOptions& options);
  virtual ~GradientForm() = default;

  // Set-up: allocates the form's state.
  virtual void commit(Memory&) {}
  // Returns the loss scale that the sums still contain; the update divides by it.
  virtual double left_scale(double loss_scale) const = 0;
  // Returns true if a sum takes any number of visits. Otherwise the options' limit bounds the number.
  virtual bool takes_any_number() const = 0;
  // Returns the rounding grid for the losses of a step before they are added, so that their sum is
  // independent of the order. 0: no rounding.
  virtual double grid_of_losses() const = 0;
  // Begins a step. unscale: factor applied to a visit's gradient on conversion to the form.
  virtual void begin_step(double unscale, Stream& compute) = 0;

  // Returns the fp32 elements that a visit needs to write `numel` gradients before conversion. 0: the visit
  // writes the sum directly, and encode is not called.
  virtual int64_t apart_numel(int64_t numel) const = 0;
  // sum = (adds ? sum : 0) + the gradients in `apart`.
  virtual void encode(Tensor sum, Tensor apart, bool adds, Stream& compute) const = 0;
  // sum += x, both in this form, on a stream that can access both.
  virtual void add(Tensor sum, Tensor x, Stream& stream) const = 0;

  // Returns the memory that a sum of `numel` terms over `ranks` > 1 ranks needs.
  virtual Needs crossing(int64_t, int) const { return {}; }
  // Collectives on gradients of this form: reduce_scatter sets sum to this rank's shard of the sum, as
  // Communicator::reduce_scatter does; all_reduce requires sum and terms to be the same tensor.
  virtual void reduce_scatter(const Crossed& c, Stream& stream) const {
    c.ranks.reduce_scatter(c.sum, c.terms, stream, c.call);
  }
  virtual void all_reduce(const Crossed& c, Stream& stream) const {
    c.ranks.all_reduce(c.sum, stream, c.call);
  }

  // Returns the fp32 elements that an update needs to read `numel` gradients at a time. 0: the update reads
  // the sum directly, and decode is not called.
  virtual int64_t decoded_numel(int64_t numel) const = 0;
  virtual void decode(Tensor gradient, Tensor sum, Stream& stream) const = 0;

  // Sums of squares: squares_of_part() elements of this type for each part, then squares_of_all() elements
  // common to all parts. Sums of several ranks are added element by element.
  virtual DType type_of_squares() const = 0;
  virtual int64_t squares_of_part() const = 0;
  virtual int64_t squares_of_all() const = 0;
  int64_t squares_numel(int64_t parts) const { return squares_of_part() * parts + squares_of_all(); }
  virtual void square(Tensor part_squares, Tensor sum, Stream& stream) const = 0;
  virtual void square_all(Tensor all_squares, Stream& compute) const = 0;
  // Returns the squared norm of each part from the sums over the ranks. NaN if a gradient did not fit the
  // form.
  virtual std::vector<double> squared_norms(Tensor squares, Stream& compute) const = 0;
};

}  // namespace cleave::zero
