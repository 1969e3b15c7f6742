// Which parameters weight decay applies to.
#pragma once
#include <string>
#include <vector>

#include "core/param_spec.h"

namespace cleave::config {

class DecayRule {
 public:
  static constexpr const char *kMatrices = "matrices", *kAll = "all";

  // Those that a layer declares so (ParamSpec::decay): matrices, and neither biases nor norms.
  DecayRule() : DecayRule({kMatrices}) {}
  // Those that any of the words applies to: "matrices", "all", or a pattern of names as fnmatch(3) has it
  // ("h.*.weight").
  explicit DecayRule(std::vector<std::string> words) : words_(std::move(words)) {}

  bool applies_to(const ParamSpec& param) const;
  // The words that apply to none of the parameters and are patterns.
  std::vector<std::string> idle_patterns(const std::vector<UnitSpec>& units) const;

 private:
  std::vector<std::string> words_;
};

}  // namespace cleave::config
