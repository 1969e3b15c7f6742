// Transformer block: x -> x + attention(norm(x)) -> that + mlp(norm(that)). A recipe may add a norm after
// each half or omit the one before it.
#pragma once
#include <memory>
#include <optional>

#include "model/half.h"
#include "model/norm.h"
#include "model/row_dropout.h"

namespace cleave::model {

// Residual stream with norms, dropout and sums; handles kept state, recomputation and both parts of a split
// backward. Runs on the local rows; over a tensor axis the halves compute their share for all rows. A lean
// block does not keep the outputs of norms, which are cheap to recompute, but it keeps the inputs of norms
// after a half.
class Block final : public Layer {
 public:
  struct Branch {
    std::string name;  // of its dropout, appended to the block's name
    std::optional<Norm> before;
    std::unique_ptr<Half> half;
    std::optional<Norm> after = {};
  };
  // The block's unit has the parameters in branch order, each norm before or after its half. biases_last: all
  // biases come after the other parameters. Checkpoints do not depend on that order, but the last bits of the
  // gradient norm do.
  Block(std::string name, Branch attention, Branch mlp, const RowDropout& dropout, bool biases_last = false);

  std::vector<UnitSpec> units() const override { return units_; }
  void freeze(const config::FreezeRule& rule) override { units_ = settle(declared_, rule); }
  void attach(const config::AdapterRule& rule, std::vector<std::string>& linears) override;
  bool use_fp8(const config::Fp8Rule& rule) override;
  std::vector<LayerState> states() const override { return states_; }
  void join(std::span<const StateViews> states, Stream& stream) const override;
  TensorSpec output(const TensorSpec& in) const override { return in; }
  double flops(const TensorSpec& in) const override;
  KeptHeads kept_heads() const override { return attention_.half->kept_heads(); }
  void forward(const ForwardArgs& args) const override;
  bool splits_backward() const override { return true; }
  void backward(const BackwardArgs& args) const override;

 private:
  struct KeptOfBranch {
    Norm::Kept before = {}, after = {};
    Tensor normed = {};  // undefined in a lean block
    Tensor out = {};     // output of the half, if a norm follows
  };
  struct Kept {
    KeptOfBranch attention, mlp;
    Tensor middle;  // x + attention(norm(x))
  };
  // State that the input part of a split backward keeps for the weight part, which has no parameters and
  // cannot recompute norms.
  struct WaitingOfBranch {
    Tensor normed;
    Norm::Gradients before, after;
    Tensor dout;  // gradient of the half's output, if a norm follows
  };
  struct Waiting {
    WaitingOfBranch attention, mlp;
    Tensor dmiddle;
  };
  // Gradients of a branch's sum: dy of the sum, dx of its residual x.
  struct Sum {
    Tensor dx, dy, x;
  };

  void declare();
  // y = dropout(after(half(before(rows)))).
  KeptOfBranch forward(const Branch& branch, const Norm::Rows& rows, const ForwardArgs& args) const;
  // Returns the input of the half; always computes the sum of rows.
  Tensor before(const Branch& branch, const Norm::Rows& rows, KeptOfBranch& kept,
                const ForwardArgs& args) const;
  WaitingOfBranch backward(const Branch& branch, const KeptOfBranch& kept, const Sum& sum,
                           const BackwardArgs& args) const;
  void backward_weight(const Branch& branch, const WaitingOfBranch& waiting, Tensor dy,
                       const BackwardArgs& args) const;
  void drop(const Branch& branch, Tensor y, Tensor x, const Position& at, Stream& stream) const;
  // Returns the gradient through the branch's dropout; a copy, because the residual needs the original.
  Tensor dropped(const Branch& branch, Tensor dy, const BackwardArgs& args) const;
  // Returns the gradient of the half's output from that of the branch.
  Tensor behind(const Branch& branch, const KeptOfBranch& kept, Tensor dy, WaitingOfBranch& waiting,
                const BackwardArgs& args) const;

  std::string name_;
  Branch attention_, mlp_;
  RowDropout dropout_;
  bool biases_last_;
  std::vector<DeclaredUnit> declared_;
  std::vector<UnitSpec> units_;
  std::vector<LayerState> states_;  // for FP8 products
};

}  // namespace cleave::model
