// Selects the parameters with weight decay.
#pragma once
#include <string>
#include <vector>

#include "core/param_spec.h"

namespace cleave::config {

class DecayRule {
 public:
  static constexpr const char *kMatrices = "matrices", *kAll = "all";

  // Parameters that their layer declares (ParamSpec::decay): matrices, but not biases and norms.
  DecayRule() : DecayRule({kMatrices}) {}
  // Parameters that any of the words selects: "matrices", "all", or a name pattern of fnmatch(3)
  // ("h.*.weight").
  explicit DecayRule(std::vector<std::string> words) : words_(std::move(words)) {}

  bool applies_to(const ParamSpec& param) const;
  // Returns the patterns that match no parameter.
  std::vector<std::string> idle_patterns(const std::vector<UnitSpec>& units) const;

 private:
  std::vector<std::string> words_;
};

}  // namespace cleave::config
