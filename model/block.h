// One block of a transformer: x -> x + attention(norm(x)) -> that + mlp(norm(that)), with another norm behind
// each half or none before it where a recipe says so.
#pragma once
#include <memory>
#include <optional>

#include "model/half.h"
#include "model/norm.h"
#include "model/row_dropout.h"

namespace cleave::model {

// The residual stream and what stands on it: norms, dropout, sums; what is kept, what is made again, and both
// parts of a split backward. It is computed where the rows are; over a tensor axis the halves compute their
// share for all rows. Outputs of norms are cheap to make again, so a lean block does not keep them; what a
// norm behind a half is given is not.
class Block final : public Layer {
 public:
  struct Branch {
    std::string name;  // of its dropout, behind the block's
    std::optional<Norm> before;
    std::unique_ptr<Half> half;
    std::optional<Norm> after = {};
  };
  // In the block's unit parameters stand in the order of the branches, each norm before its half or behind
  // it. biases_last: all biases stand behind the other parameters. No checkpoint sees that order, but the
  // last bits of the gradient norm depend on it.
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
    Tensor out = {};     // of the half, where a norm stands behind it
  };
  struct Kept {
    KeptOfBranch attention, mlp;
    Tensor middle;  // x + attention(norm(x))
  };
  // What the input part of a split backward keeps for the weights' part, where parameters are not there and a
  // norm cannot be made again.
  struct WaitingOfBranch {
    Tensor normed;
    Norm::Gradients before, after;
    Tensor dout;  // of the half's output, where a norm stands behind it
  };
  struct Waiting {
    WaitingOfBranch attention, mlp;
    Tensor dmiddle;
  };
  // The gradients of a branch's sum: dy of the sum, dx of its residual x.
  struct Sum {
    Tensor dx, dy, x;
  };

  void declare();
  // y = after(half(before(rows))), dropped.
  KeptOfBranch forward(const Branch& branch, const Norm::Rows& rows, const ForwardArgs& args) const;
  // What the half is given; the sum of rows is made in any case.
  Tensor before(const Branch& branch, const Norm::Rows& rows, KeptOfBranch& kept,
                const ForwardArgs& args) const;
  WaitingOfBranch backward(const Branch& branch, const KeptOfBranch& kept, const Sum& sum,
                           const BackwardArgs& args) const;
  void backward_weight(const Branch& branch, const WaitingOfBranch& waiting, Tensor dy,
                       const BackwardArgs& args) const;
  void drop(const Branch& branch, Tensor y, Tensor x, const Position& at, Stream& stream) const;
  // The gradient through the branch's dropout; the residual keeps the undropped one, so this is a copy.
  Tensor dropped(const Branch& branch, Tensor dy, const BackwardArgs& args) const;
  // The gradient of the half's output from that of the branch.
  Tensor behind(const Branch& branch, const KeptOfBranch& kept, Tensor dy, WaitingOfBranch& waiting,
                const BackwardArgs& args) const;

  std::string name_;
  Branch attention_, mlp_;
  RowDropout dropout_;
  bool biases_last_;
  std::vector<DeclaredUnit> declared_;
  std::vector<UnitSpec> units_;
  std::vector<LayerState> states_;  // of products in FP8
};

}  // namespace cleave::model
