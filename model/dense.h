// One matrix product of a block with its parameters, which a checkpoint may call by one name or by several:
// queries, keys and values, or gate and up, whose matrices then stand one below the other.
#pragma once
#include "model/linear.h"
#include "model/parameter.h"

namespace cleave::model {

class Dense {
 public:
  struct Part {
    Parameter weight, bias = {};  // [out, in] and [out], as this rank holds them
    Range used = {};              // the outputs that this rank computes; empty: all of them
  };
  Dense() = default;
  // Where ranks add up their outputs, the first alone adds the bias.
  enum class Bias : uint8_t { added, elsewhere };
  explicit Dense(std::vector<Part> parts, Bias bias = Bias::added);
  // Weights before biases: both are one matrix only where their parts are neighbours in the unit.
  void declare(DeclaredUnit& unit);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  // The product with a call's parameters. Parts that are used partly are put together in scratch.
  Linear bind(std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  // Whether the gradient of any of its parameters is wanted.
  bool trains(std::span<ParamGradient> grads) const;
  // Adds to the parameters' gradients: those of the outputs are dy, and x is the input.
  void backward_weight(const Linear::OutputGradient& dy, Tensor x, std::span<ParamGradient> grads,
                       Arena& scratch, Stream& stream) const;

 private:
  using Member = Parameter Part::*;
  Tensor together(Member which, std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  std::vector<ParamGradient> gradients(Member which, std::span<ParamGradient> grads) const;
  // `gradient` is of all parts one below the other, as together() has their parameters.
  void add_apart(std::span<ParamGradient> parts, Tensor gradient, Stream& stream) const;
  bool whole() const;

  std::vector<Part> parts_;
  Bias bias_ = Bias::added;
  int64_t in_ = 0, out_ = 0;
};

}  // namespace cleave::model
