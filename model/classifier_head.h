// A linear classifier with softmax cross-entropy: the language model's head (weights tied to the embedding)
// and the MLP's. Over a tensor axis each rank has the columns of its part of the classes, and the logits of
// the others never reach it.
#pragma once
#include "model/layer.h"
#include "tensor_parallel/tensor_axis.h"

namespace cleave::model {

class ClassifierHead final : public Head {
 public:
  struct Config {
    std::string unit, weight;  // names; the unit may be another layer's (tied)
    std::string bias = {};     // empty: no bias
    int64_t classes = 0, width = 0;
    float init_scale = 0.02f;
    tensor_parallel::TensorAxis axis = {};
  };
  explicit ClassifierHead(Config config) : c_(std::move(config)), part_(c_.axis.padded_part(c_.classes)) {}

  std::vector<UnitSpec> units() const override;
  void run(const HeadArgs& args) const override;
  void logits(Tensor logits, Tensor x, Range rows, std::span<const Tensor> params, Arena& scratch,
              Stream& stream) const override;
  int64_t classes() const override { return c_.classes; }
  bool counts_hits() const override { return true; }
  int64_t columns() const override { return part_.size; }

 private:
  // Losses of some rows from this rank's logits z; in training also dz, which may be z.
  void loss(const HeadArgs& args, Range rows, Tensor z, Tensor dz, Tensor stats) const;

  Config c_;
  tensor_parallel::TensorAxis::Padded part_;  // of the classes
};

}  // namespace cleave::model
