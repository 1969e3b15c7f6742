// One matrix product of a block with its parameters, which a checkpoint may call by one name or by several:
// queries, keys and values, or gate and up, whose matrices then stand one below the other. Each of them may
// have an adapter; the matrices A of these stand one below the other, and each B writes its own columns.
#pragma once
#include "config_schema/adapter_rule.h"
#include "model/fp8.h"
#include "model/linear.h"
#include "model/parameter.h"

namespace cleave::model {

class Dense {
 public:
  struct Part {
    Parameter weight, bias = {};  // [out, in] and [out], as this rank holds them
    Range used = {};              // the outputs that this rank computes; empty: all of them
    Parameter a = {}, b = {};     // of its adapter: [rank, in] and [out, rank], as this rank holds them
  };
  Dense() = default;
  // Where ranks add up their outputs, the first alone adds the bias.
  enum class Bias : uint8_t { added, elsewhere };
  explicit Dense(std::vector<Part> parts, Bias bias = Bias::added);
  // Puts adapters beside the parts that the rule fits, and adds the names of all parts to `linears`.
  void attach(const config::AdapterRule& rule, std::vector<std::string>& linears);
  // Its products are in FP8 from now on, with the next place in its block's state; adapters' are not.
  // Error(usage) where it is not of whole multiples of 16.
  void use_fp8(int64_t& layers);
  // Weights before biases: both are one matrix only where their parts are neighbours in the unit. Adapters
  // are in a unit of their own, the last one.
  void declare(std::vector<DeclaredUnit>& units);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  // The product with a call's parameters, for so many rows. Parts that are used partly are put together in
  // scratch. Adapters keep what their first products give until the backward; in the part `weight` of a split
  // one the product has what they kept and no parameters.
  Linear bind(const ForwardArgs& args, int64_t rows) const;
  Linear bind(const BackwardArgs& args, int64_t rows) const;
  // Whether the gradient of any of its parameters is wanted.
  bool trains(std::span<ParamGradient> grads) const;
  // Adds to the parameters' gradients: those of the outputs are dy, and x is the input. `bound` is bind()'s
  // of this backward, after its input part.
  void backward_weight(const Linear& bound, const Linear::OutputGradient& dy, Tensor x,
                       const BackwardArgs& args) const;

 private:
  using Member = Parameter Part::*;
  // What an adapter's first products gave: in the forward, and in the input part of a split backward.
  struct KeptInner {
    Tensor inner;
  };
  template <class Args>
  Linear bound(const Args& args, int64_t rows) const;
  Linear bind(std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  Adapter adapter(std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  Tensor together(Member which, std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  std::vector<ParamGradient> gradients(Member which, std::span<ParamGradient> grads) const;
  // `gradient` is of all parts that have the parameter one below the other, as together() has them.
  void add_apart(Member which, std::span<ParamGradient> grads, Tensor gradient, Stream& stream) const;
  // Adds to the gradients of weights and biases, or of the adapters.
  void add_own(const Linear::OutputGradient& dy, Tensor x, const BackwardArgs& args) const;
  void add_adapters(Tensor dinner, Tensor dy, Tensor x, const BackwardArgs& args) const;
  // Calls visit(part, its first row of all outputs, its first column of all adapters' ranks) for each
  // adapter.
  template <class Visit>
  void each_adapter(Visit visit) const;
  int64_t outputs(const Part& part) const;
  bool whole() const;

  std::vector<Part> parts_;
  Bias bias_ = Bias::added;
  int64_t in_ = 0, out_ = 0;
  config::AdapterSize size_ = {};  // of each adapter
  int64_t ranks_ = 0;              // of all adapters together
  Fp8Dense fp8_;
};

}  // namespace cleave::model
