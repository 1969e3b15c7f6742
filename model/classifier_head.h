// Linear classifier with softmax cross-entropy: the language model's head (weights tied to the embedding) and
// the MLP's. Over a tensor axis each rank has the columns of its part of the classes; logits are never
// exchanged.
#pragma once
#include "model/layer.h"
#include "model/parameter.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave::model {

class ClassifierHead final : public Head {
 public:
  struct Config {
    std::string unit, weight;  // names; a tied head uses another layer's unit
    std::string bias = {};     // empty: no bias
    int64_t classes = 0, width = 0;
    float init_scale = 0.02f;
    float cap = 0;  // a logit z becomes cap * tanh(z / cap); 0: no cap
    tensor_parallel::TensorAxis axis = {};
  };
  explicit ClassifierHead(Config config);

  std::vector<UnitSpec> units() const override { return units_; }
  void freeze(const config::FreezeRule& rule) override;
  void run(const HeadArgs& args) const override;
  void logits(Tensor logits, Tensor x, Range rows, std::span<const Tensor> params, Arena& scratch,
              Stream& stream) const override;
  int64_t classes() const override { return c_.classes; }
  bool counts_hits() const override { return true; }
  int64_t columns() const override { return part_.size; }

 private:
  // Computes this rank's logits, capped.
  void product(Tensor z, Tensor x, std::span<const Tensor> params, Stream& stream) const;
  // Computes losses of some rows from this rank's logits z; in training also dz, which may alias z.
  void loss(const HeadArgs& args, Range rows, Tensor z, Tensor dz, Tensor stats) const;

  Config c_;
  tensor_parallel::TensorAxis::Padded part_;  // classes
  Parameter weight_, bias_;
  std::vector<DeclaredUnit> declared_;
  std::vector<UnitSpec> units_;
};

}  // namespace cleave::model
