// The products of a dense layer in floats of eight bits (kernels/fp8.h): inputs and weights as E4M3,
// gradients of outputs as E5M2 (arXiv 2209.05433). Weights, activations and gradients between products stay
// what they are; codes live for a product.
#pragma once
#include "config_schema/fp8_rule.h"
#include "model/layer.h"

namespace cleave::model {

// What scales are made of: each row's own magnitudes, or the history of the operand's.
struct Fp8Scale {
  Tensor history = {}, seen = {};  // seen: where this step's largest magnitude is noted; undefined: nowhere
  float unit = 1;                  // of both
};

// An operand in FP8, or room for one.
struct Fp8Codes {
  Tensor codes = {}, scales = {};  // [rows, terms]; one scale, or one a row
};

// A product with a weight that is there as codes: of the forward, or of the input's gradient.
struct Fp8Product {
  Fp8Codes weight = {};  // its rows are the columns of the result
  Fp8Codes room = {};    // for the other operand, of as many rows as there are
  Fp8Scale scale = {};   // of the other operand

  explicit operator bool() const { return weight.codes.defined(); }
  // y = x times the weight, + bias where it is defined.
  void multiply(Tensor y, Tensor x, Tensor bias, Stream& stream) const;
};

// A dense layer's place in the state of its block: rows [3 place, 3 place + 3) of [rows, steps] are the
// largest magnitudes that its inputs, its weight and the gradients of its outputs had in the last steps, the
// newest first. They are in units, so that all of them begin with 1: of 16 for inputs, of 1 for weights, and
// for gradients of the power of two at or below the factor that gradients are multiplied with
// (BackwardArgs::scale).
class Fp8Dense {
 public:
  // Of a state of its kind, a block's.
  static constexpr int64_t kRows = 3;

  Fp8Dense() = default;  // its products are in the types of their operands
  Fp8Dense(int64_t place, int64_t in, int64_t out) : place_(place), in_(in), out_(out) {}
  explicit operator bool() const { return in_ > 0; }

  // Makes the codes of the weight [out, in] as a pass multiplies them, in scratch, with room for the rows'.
  Fp8Product bind(const ForwardArgs& args, Tensor weight, int64_t rows) const;
  Fp8Product bind(const BackwardArgs& args, Tensor weight, int64_t rows) const;
  // Adds dy^T x to dweight; dy [rows, out] and x [rows, in].
  void add_weight(ParamGradient& dweight, Tensor dy, Tensor x, const BackwardArgs& args) const;

 private:
  enum class Whose : uint8_t { input, weight, gradient };
  Fp8Scale scale_of(Whose whose, std::span<const StateViews> states, float of_gradients = 1) const;

  int64_t place_ = 0, in_ = 0, out_ = 0;
};

// The state of a block with so many such layers.
LayerState fp8_state(const std::string& block, int64_t layers, const config::Fp8Rule& rule);

}  // namespace cleave::model
