// The form that gradients have from the moment a layer has written one until the optimizer reads the sum, as
// a value: how a visit's gradient comes into the form, how two are added, what an update reads of it, and how
// its squares are summed. It owns these kernels and the state that they need; who adds gradients up asks it
// and knows no form by name. What a form costs in memory it says in elements, which whoever allocates counts.
//
// A form may make something else of a sum over ranks than a collective of its elements, such as signs and
// what they left out: it is given the ranks, and what it keeps of that sum from step to step.
#pragma once
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "device/memory.h"
#include "zero/store_options.h"

namespace cleave::zero {

class GradientForm {
 public:
  // What a sum of gradients over ranks takes beside its operands. kept: from step to step, zeros before the
  // first; travelling: bytes of the device that one sum after another uses.
  struct Needs {
    struct Kept {
      MemoryKind home = MemoryKind::device;
      Category category = Category::optimizer_state;
      DType dtype = DType::fp32;
      int64_t numel = 0;
    } kept = {};
    int64_t travelling = 0;
  };
  // A sum of the gradients of a unit over more than one rank, and the memory that was asked for it. What is
  // kept is in no checkpoint: a run that goes on begins it with zeros.
  struct Crossed {
    comm::Communicator& ranks;
    Tensor sum, terms;  // of all ranks' terms, which have the wire's type
    Tensor kept, travelling;
    const comm::Call& call;
  };

  // Floats, or multiples of a grid where the options ask for exact sums.
  static std::unique_ptr<GradientForm> of(const StoreOptions& options);
  virtual ~GradientForm() = default;

  // Set-up: allocates what the form itself keeps.
  virtual void commit(Memory&) {}
  // What the sums still have in them of the loss scale; the update takes it out.
  virtual double left_scale(double loss_scale) const = 0;
  // Whether a sum takes any number of visits; otherwise as many as the options' limit was made for.
  virtual bool takes_any_number() const = 0;
  // What the losses of a step are rounded to a multiple of before they are added, so that their sum has no
  // order either. 0: they are added as they are.
  virtual double grid_of_losses() const = 0;
  // Once a step. unscale: what a visit's gradient is multiplied by on its way into the form.
  virtual void begin_step(double unscale, Stream& compute) = 0;

  // Elements of fp32 in which a visit writes so many gradients before they are in the form. 0: it writes the
  // sum itself, and encode is not called.
  virtual int64_t apart_numel(int64_t numel) const = 0;
  // sum = (adds ? sum : 0) + what a visit wrote apart.
  virtual void encode(Tensor sum, Tensor apart, bool adds, Stream& compute) const = 0;
  // sum += x, both in this form, on a stream that computes where both are.
  virtual void add(Tensor sum, Tensor x, Stream& stream) const = 0;

  // What a crossing of so many terms over so many ranks, more than one, needs.
  virtual Needs crossing(int64_t, int) const { return {}; }
  // sum = this rank's shard of the sum, as Communicator::reduce_scatter; sum and terms are one tensor, as
  // all_reduce.
  virtual void reduce_scatter(const Crossed& c, Stream& stream) const {
    c.ranks.reduce_scatter(c.sum, c.terms, stream, c.call);
  }
  virtual void all_reduce(const Crossed& c, Stream& stream) const {
    c.ranks.all_reduce(c.sum, stream, c.call);
  }

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
  // The squares of each part, from what the ranks' sums add up to; not a number where a gradient did not fit
  // the form.
  virtual std::vector<double> squared_norms(Tensor squares, Stream& compute) const = 0;
};

}  // namespace cleave::zero
