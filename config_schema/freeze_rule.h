// Selects the frozen parameters of a training.
#pragma once
#include <string>
#include <vector>

#include "core/param_spec.h"

namespace cleave::config {

class FreezeRule {
 public:
  FreezeRule() = default;  // no frozen parameters
  // Parameters with a name that matches any pattern of fnmatch(3) ("model.layers.0.*", "*.mlp.*").
  // `prefix` is the start of names in published files, which a pattern may include
  // ("transformer.").
  explicit FreezeRule(std::vector<std::string> patterns, std::string prefix = "")
      : patterns_(std::move(patterns)), prefix_(std::move(prefix)) {}

  bool empty() const { return patterns_.empty(); }
  bool applies_to(const std::string& name) const;
  // Returns the patterns that match no parameter.
  std::vector<std::string> idle_patterns(const std::vector<UnitSpec>& units) const;

 private:
  bool fits(const std::string& pattern, const std::string& name) const;

  std::vector<std::string> patterns_;
  std::string prefix_;
};

// Returns the parameter name nearest to the pattern by edit distance.
std::string nearest_name(const std::string& pattern, const std::vector<UnitSpec>& units);

}  // namespace cleave::config
