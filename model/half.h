// One half of a block: the function between a norm and the residual sum, attention or an MLP.
#pragma once
#include "model/layer.h"
#include "model/parameter.h"

namespace cleave::model {

// Its input x and output y are rows as the tensor axis cuts them, [rows, width]; what it computes in between
// is its own affair, movements over axes included. It is told and given what a layer is (model/layer_args.h),
// and always knows both parts of a split backward. What it keeps it puts into the block's Saved as a struct.
class Half {
 public:
  virtual ~Half() = default;
  // Adds its parameters to units.front(), the block's own unit, and units of its own behind it where it has
  // such: parameters that are gathered, reduced and saved apart from the block's.
  virtual void declare(std::vector<DeclaredUnit>& units) = 0;
  // Attaches as Layer::attach does, before it declares anew; adds the names of its linear layers to
  // `linears`.
  virtual void attach(const config::AdapterRule&, std::vector<std::string>& /*linears*/) {}
  // Its products with weights are in FP8 from now on; their places in the block's state are from `layers` on,
  // which counts them.
  virtual void use_fp8(int64_t& /*layers*/) {}
  // Arithmetic of one forward and backward beside the products with weights, for so many rows of the input.
  virtual double flops(int64_t rows) const = 0;
  virtual KeptHeads kept_heads() const { return {}; }
  virtual void forward(const ForwardArgs& args) const = 0;
  // args.x is what the forward had, kept or made again.
  virtual void backward(const BackwardArgs& args) const = 0;
};

}  // namespace cleave::model
