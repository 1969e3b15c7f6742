// Dense layer products in 8-bit floats (kernels/fp8.h): inputs and weights as E4M3, gradients of outputs as
// E5M2 (arXiv 2209.05433). Weights, activations and gradients between products keep their types; codes exist
// only during a product.
#pragma once
#include "config_schema/fp8_rule.h"
#include "model/layer.h"

namespace cleave::model {

// Source of scales: the magnitudes of each row, or the operand's history.
struct Fp8Scale {
  Tensor history = {}, seen = {};  // seen: receives this step's largest magnitude; undefined: not recorded
  float unit = 1;                  // unit of both
};

// Operand in FP8, or memory for one.
struct Fp8Codes {
  Tensor codes = {}, scales = {};  // [rows, terms]; one scale, or one per row
};

// Product with an encoded weight: for the forward, or for the input's gradient.
struct Fp8Product {
  Fp8Codes weight = {};  // its rows are the columns of the result
  Fp8Codes room = {};    // memory for the other operand, with the maximum number of rows
  Fp8Scale scale = {};   // for the other operand

  explicit operator bool() const { return weight.codes.defined(); }
  // y = x times the weight, plus bias if defined.
  void multiply(Tensor y, Tensor x, Tensor bias, Stream& stream) const;
};

// A dense layer's place in the state of its block: rows [3 place, 3 place + 3) of [rows, steps] are the
// largest magnitudes of its inputs, its weight and the gradients of its outputs in the last steps, newest
// first. They are in units, so that all start at 1: 16 for inputs, 1 for weights, and for gradients the power
// of two at or below their factor (BackwardArgs::scale).
class Fp8Dense {
 public:
  // State rows per layer.
  static constexpr int64_t kRows = 3;

  Fp8Dense() = default;  // products keep the types of their operands
  Fp8Dense(int64_t place, int64_t in, int64_t out) : place_(place), in_(in), out_(out) {}
  explicit operator bool() const { return in_ > 0; }

  // Encodes the weight [out, in] for the products of a pass, in scratch, with memory for the codes of `rows`
  // rows.
  Fp8Product bind(const ForwardArgs& args, Tensor weight, int64_t rows) const;
  Fp8Product bind(const BackwardArgs& args, Tensor weight, int64_t rows) const;
  // Adds dy^T x to dweight; dy [rows, out] and x [rows, in].
  void add_weight(ParamGradient& dweight, Tensor dy, Tensor x, const BackwardArgs& args) const;

 private:
  enum class Whose : uint8_t { input, weight, gradient };
  Fp8Scale scale_of(Whose whose, std::span<const StateViews> states, float of_gradients = 1) const;

  int64_t place_ = 0, in_ = 0, out_ = 0;
};

// Returns the state of a block with `layers` such layers.
LayerState fp8_state(const std::string& block, int64_t layers, const config::Fp8Rule& rule);

}  // namespace cleave::model
