// Half of a block: the function between a norm and the residual sum, attention or an MLP.
#pragma once
#include "model/layer.h"
#include "model/parameter.h"

namespace cleave::model {

// Input x and output y are rows as cut by the tensor axis, [rows, width]. The half handles everything in
// between, including transfers over axes. It has the interface of a layer (model/layer_args.h) and always
// supports a split backward. It stores its state in the block's Saved as a struct.
class Half {
 public:
  virtual ~Half() = default;
  // Adds its parameters to units.front(), the block's unit. Parameters that are gathered, reduced and saved
  // separately go into additional units after it.
  virtual void declare(std::vector<DeclaredUnit>& units) = 0;
  // Attaches adapters as Layer::attach does, followed by another declare; appends the names of its linear
  // layers to `linears`.
  virtual void attach(const config::AdapterRule&, std::vector<std::string>& /*linears*/) {}
  // Switches its products with weights to FP8; they take places in the block's state starting at `layers`,
  // which is advanced.
  virtual void use_fp8(int64_t& /*layers*/) {}
  // Returns the FLOPs of one forward and backward other than products with weights, for `rows` input rows.
  virtual double flops(int64_t rows) const = 0;
  virtual KeptHeads kept_heads() const { return {}; }
  virtual void forward(const ForwardArgs& args) const = 0;
  // args.x is the forward's input, kept or recomputed.
  virtual void backward(const BackwardArgs& args) const = 0;
};

}  // namespace cleave::model
