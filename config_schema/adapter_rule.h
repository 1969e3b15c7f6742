// Which linear layers train a pair of matrices of low rank beside their weight, which stays as it is (LoRA,
// arXiv 2106.09685).
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
  // Stands for every linear layer of the blocks.
  static constexpr const char* kAllLinear = "all-linear";

  AdapterRule() = default;  // none
  // A target is the name of a linear layer, whole or its last parts ("q_proj", "mlp.down_proj"). `prefix` is
  // what published files write before names, which a target may begin with ("transformer.").
  AdapterRule(std::vector<std::string> targets, AdapterSize size, std::string prefix = "");

  bool empty() const { return targets_.empty(); }
  const AdapterSize& size() const { return size_; }
  bool applies_to(const std::string& linear) const;
  // The targets that name none of them.
  std::vector<std::string> idle_targets(const std::vector<std::string>& linears) const;

 private:
  bool names(const std::string& target, const std::string& linear) const;

  std::vector<std::string> targets_;
  AdapterSize size_;
  std::string prefix_;
};

}  // namespace cleave::config
