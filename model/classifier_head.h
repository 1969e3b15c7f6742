// A linear classifier with softmax cross-entropy: the language model's head (weights tied to the embedding)
// and the MLP's.
#pragma once
#include "model/layer.h"

namespace cleave {

class ClassifierHead final : public Head {
 public:
  struct Config {
    std::string unit, weight;  // names; the unit may be another layer's (tied)
    std::string bias = {};     // empty: no bias
    int64_t classes = 0, width = 0;
    float init_scale = 0.02f;
    int64_t chunk_bytes = 128 << 20;  // of logits and their gradient in memory at a time
  };
  explicit ClassifierHead(Config config) : c_(std::move(config)) {}

  std::vector<UnitSpec> units() const override;
  void run(const HeadArgs& args) const override;
  void logits(Tensor logits, Tensor x, std::span<const Tensor> params, Stream& stream) const override;
  int64_t classes() const override { return c_.classes; }

 private:
  Config c_;
};

}  // namespace cleave
