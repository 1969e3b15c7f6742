// Selects the linear layers with a low-rank adapter (LoRA, arXiv 2106.09685). An adapter is a
// trained pair of matrices in addition to the frozen weight.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::config {

// y = x W^T + scale (x A^T) B^T with A [rank, in] and B [out, rank].
struct AdapterSize {
  int64_t rank = 0;
  float scale = 1;
};

class AdapterRule {
 public:
  // Selects every linear layer of the blocks.
  static constexpr const char* kAllLinear = "all-linear";

  AdapterRule() = default;  // no adapters
  // A target is the name of a linear layer, complete or its last parts ("q_proj", "mlp.down_proj").
  // `prefix` is the start of names in published files, which a target may include ("transformer.").
  AdapterRule(std::vector<std::string> targets, AdapterSize size, std::string prefix = "");

  bool empty() const { return targets_.empty(); }
  const AdapterSize& size() const { return size_; }
  bool applies_to(const std::string& linear) const;
  // Returns the targets that match no linear layer.
  std::vector<std::string> idle_targets(const std::vector<std::string>& linears) const;

 private:
  bool names(const std::string& target, const std::string& linear) const;

  std::vector<std::string> targets_;
  AdapterSize size_;
  std::string prefix_;
};

}  // namespace cleave::config
