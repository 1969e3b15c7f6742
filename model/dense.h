// Matrix product of a block with its parameters. A checkpoint may use one name or several: queries, keys and
// values, or gate and up, with matrices stacked by rows. Each part may have an adapter; the adapters'
// matrices A are stacked by rows, and each B writes the columns of its part.
#pragma once
#include "config_schema/adapter_rule.h"
#include "model/fp8.h"
#include "model/linear.h"
#include "model/parameter.h"

namespace cleave::model {

class Dense {
 public:
  struct Part {
    Parameter weight, bias = {};  // [out, in] and [out], local sizes
    Range used = {};              // outputs that this rank computes; empty: all
    Parameter a = {}, b = {};     // adapter: [rank, in] and [out, rank], local sizes
  };
  Dense() = default;
  // If ranks sum their outputs, only the first adds the bias.
  enum class Bias : uint8_t { added, elsewhere };
  explicit Dense(std::vector<Part> parts, Bias bias = Bias::added);
  // Adds adapters to all parts that match the rule, and appends the names of all parts to `linears`.
  void attach(const config::AdapterRule& rule, std::vector<std::string>& linears);
  // Switches its products to FP8, with the next place in its block's state; adapters are unchanged. Throws
  // Error(usage) if sizes are not multiples of 16.
  void use_fp8(int64_t& layers);
  // Declares weights before biases: joint matrices need adjacent parts in the unit. Adapters get a separate
  // unit, the last one.
  void declare(std::vector<DeclaredUnit>& units);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  // Returns the product with the parameters of a call, for `rows` rows. Copies partly used parts to scratch.
  // Adapters keep their first products until the backward; in the part `weight` of a split backward the
  // product has these and no parameters.
  Linear bind(const ForwardArgs& args, int64_t rows) const;
  Linear bind(const BackwardArgs& args, int64_t rows) const;
  // Returns true if any parameter gradient is wanted.
  bool trains(std::span<ParamGradient> grads) const;
  // Adds to the parameters' gradients; dy is the gradient of the outputs and x the input. `bound` is the
  // result of bind() in this backward, after its input part.
  void backward_weight(const Linear& bound, const Linear::OutputGradient& dy, Tensor x,
                       const BackwardArgs& args) const;

 private:
  using Member = Parameter Part::*;
  // First products of adapters, kept by the forward and by the input part of a split backward.
  struct KeptInner {
    Tensor inner;
  };
  template <class Args>
  Linear bound(const Args& args, int64_t rows) const;
  Linear bind(std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  Adapter adapter(std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  Tensor together(Member which, std::span<const Tensor> params, Arena& scratch, Stream& stream) const;
  std::vector<ParamGradient> gradients(Member which, std::span<ParamGradient> grads) const;
  // `gradient` stacks all parts with the parameter by rows, as together() does.
  void add_separately(Member which, std::span<ParamGradient> grads, Tensor gradient, Stream& stream) const;
  // Adds to the gradients of weights and biases, or of the adapters.
  void add_own(const Linear::OutputGradient& dy, Tensor x, const BackwardArgs& args) const;
  void add_adapters(Tensor dinner, Tensor dy, Tensor x, const BackwardArgs& args) const;
  // Calls visit(part, its first row among all outputs, its first column among all adapter ranks) for each
  // adapter.
  template <class Visit>
  void each_adapter(Visit visit) const;
  int64_t outputs(const Part& part) const;
  bool whole() const;

  std::vector<Part> parts_;
  Bias bias_ = Bias::added;
  int64_t in_ = 0, out_ = 0;
  config::AdapterSize size_ = {};  // rank and scale of each adapter
  int64_t ranks_ = 0;              // sum over all adapters
  Fp8Dense fp8_;
};

}  // namespace cleave::model
