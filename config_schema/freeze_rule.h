// Which parameters a training leaves as they are.
#pragma once
#include <string>
#include <vector>

#include "core/param_spec.h"

namespace cleave::config {

class FreezeRule {
 public:
  FreezeRule() = default;  // none
  // Those whose name any of the patterns fits, as fnmatch(3) has them ("model.layers.0.*", "*.mlp.*").
  // `prefix` is what published files write before names, which a pattern may begin with ("transformer.").
  explicit FreezeRule(std::vector<std::string> patterns, std::string prefix = "")
      : patterns_(std::move(patterns)), prefix_(std::move(prefix)) {}

  bool empty() const { return patterns_.empty(); }
  bool applies_to(const std::string& name) const;
  // The patterns that fit none of the parameters.
  std::vector<std::string> idle_patterns(const std::vector<UnitSpec>& units) const;

 private:
  bool fits(const std::string& pattern, const std::string& name) const;

  std::vector<std::string> patterns_;
  std::string prefix_;
};

// The parameter's name that takes the fewest changes of letters to be the pattern.
std::string nearest_name(const std::string& pattern, const std::vector<UnitSpec>& units);

}  // namespace cleave::config
